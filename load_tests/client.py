"""One process of clients: sends requests when they are due, and notes when each was due, sent and answered.

A loop of its own over plain sockets: it costs a third of what asyncio's does, so that on the cores that it shares with
the server it takes little from it, and it wakes within some 50 µs of an instant where event loops count in
milliseconds. A connection has one request at a time.

Open loop: what is due is sent at once on a free connection, and where there is none as soon as there is; its latency
counts from when it was due, whatever kept it. Closed loop: each answer brings the next request on its connection, due
when the client's process noticed the answer.
"""

import gc
import re
import resource
import select
import socket
from array import array
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Columns of what is noted of each request: instants in seconds since the start; the request's number; its outcome's.
DUE, SENT, ANSWERED, WHICH, OUTCOME = range(5)

#: Outcomes that are no codes of the server's.
OK, UNANSWERED, CLOSED = "ok", "unanswered", "connection_closed"

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *(\d+)")
_TIMING = re.compile(rb"\r\n[Ss]erver-[Tt]iming: *([^\r]*)")
_CODE = re.compile(rb'"code": ?"([A-Za-z0-9_.-]{1,64})"')

_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Plan:
    """What one process does. With `times` (ascending seconds) it is open loop, otherwise closed, for `seconds`.

    `requests` are whole requests as bytes; `which` says by number which of them each arrival is; in closed loop they
    follow one another in that order, over and over. `stop_after` so many requests a closed loop ends early. The
    Server-Timing of every `sample`th answer is kept. What has no answer `patience` seconds after it was sent is given
    up.
    """

    host: str
    port: int
    requests: tuple[bytes, ...]
    which: NDArray[np.int64]
    connections: int
    seconds: float
    times: NDArray[np.float64] | None = None
    stop_after: int | None = None
    sample: int = 1
    patience: float = 30.0


@dataclass(frozen=True)
class Seen:
    """What one process saw. `records` has a row for each request, in order of their answers; see `DUE` and so on.

    `cpu_seconds` of `wall_seconds` the process computed; `queued` requests found no free connection when they were due.
    """

    records: NDArray[np.float64]
    outcomes: tuple[str, ...]
    timings: tuple[bytes, ...]
    cpu_seconds: float
    wall_seconds: float
    queued: int


class Connection:
    """A socket, and the request that is on its way."""

    __slots__ = ("arrived", "due", "need", "rest", "sent", "socket", "which")

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.which = -1  # -1: none is on its way
        self.due = self.sent = 0.0
        self.rest: memoryview | None = None  # what the socket has not taken yet
        self.arrived: bytearray | None = None  # of an answer that is not complete
        self.need = 0  # its length once its head is there


@dataclass
class _Notes:
    records: "array[float]" = field(default_factory=lambda: array("d"))
    outcomes: dict[str, int] = field(default_factory=lambda: {OK: 0, UNANSWERED: 1, CLOSED: 2})
    timings: list[bytes] = field(default_factory=list)
    answers: int = 0
    queued: int = 0


class Clients:
    """All connections of one process. Opens them at once; `run` does the rest."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._poll = select.epoll()
        self._open: dict[int, Connection] = {}
        self._free: list[Connection] = []
        self._waiting: deque[tuple[float, int]] = deque()  # due, and no connection is free
        self._notes = _Notes()
        self._turn = 0  # closed loop: requests sent
        self._until = 0.0  # closed loop: no further request then
        self._look_at = 0.0  # when to look for answers that never came
        for _ in range(plan.connections):
            self._connect()

    def run(self, start: float) -> Seen:
        """Send from the monotonic instant `start` on; returns when everything is answered or given up."""
        gc.collect()
        gc.disable()
        before = resource.getrusage(resource.RUSAGE_SELF)
        self._until = start + self._plan.seconds
        try:
            if self._plan.times is None:
                self._closed_loop(start)
            else:
                self._open_loop((self._plan.times + start).tolist(), self._plan.which.tolist())
        finally:
            gc.enable()
            self._poll.close()
            for connection in self._open.values():
                connection.socket.close()
        wall = monotonic() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        notes = self._notes
        records = np.array(notes.records).reshape(-1, 5)
        records[:, : ANSWERED + 1] -= start
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Seen(records, tuple(notes.outcomes), tuple(notes.timings), cpu, wall, notes.queued)

    def _closed_loop(self, start: float) -> None:
        self._sleep(start - monotonic())
        idle, self._free = self._free, []
        for connection in idle:
            self._next(connection, monotonic())
        while self._busy():
            self._receive(self._poll.poll(0.5), again=True)

    def _open_loop(self, times: list[float], which: list[int]) -> None:
        place, count = 0, len(times)
        while place < count or self._waiting or self._busy():
            now = monotonic()
            while place < count and times[place] <= now:
                if self._free:
                    self._send(self._free.pop(), times[place], which[place])
                else:
                    self._waiting.append((times[place], which[place]))
                    self._notes.queued += 1
                place += 1
            ready = self._poll.poll(0)
            if not ready:
                self._sleep(min(times[place] - monotonic(), 0.5) if place < count else 0.5)
                ready = self._poll.poll(0)
            self._receive(ready, again=False)

    def _sleep(self, seconds: float) -> None:
        """Until something can be read, or so many seconds: `select` counts microseconds, epoll milliseconds."""
        if seconds > 0:
            select.select([self._poll], [], [], seconds)

    def _busy(self) -> bool:
        """Whether an answer is outstanding."""
        return len(self._free) < len(self._open)

    def _next(self, connection: Connection, due: float) -> None:
        """Closed loop: the next request on this connection, or none."""
        plan = self._plan
        if due >= self._until or (plan.stop_after is not None and self._turn >= plan.stop_after):
            self._free.append(connection)
            return
        which = int(plan.which[self._turn % len(plan.which)])
        self._turn += 1
        self._send(connection, due, which)

    def _send(self, connection: Connection, due: float, which: int) -> None:
        data = self._plan.requests[which]
        connection.due, connection.which, connection.sent = due, which, monotonic()
        try:
            taken = connection.socket.send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            taken = len(data)  # reading tells
        if taken < len(data):
            connection.rest = memoryview(data)[taken:]
            self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)

    def _receive(self, ready: list[tuple[int, int]], again: bool) -> None:
        noticed = monotonic()
        if noticed >= self._look_at:
            self._look_at = noticed + min(1.0, self._plan.patience / 8)
            self._give_up(noticed, again)
        for number, events in ready:
            connection = self._open[number]
            if events & select.EPOLLOUT:
                self._send_rest(connection)
            if events & ~select.EPOLLOUT:
                self._hear(connection, noticed, again)

    def _hear(self, connection: Connection, noticed: float, again: bool) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._replace(connection, CLOSED, noticed, again)
        elif (outcome := self._read(connection, data)) is not None:
            self._note(connection, monotonic(), outcome)
            self._ready(connection, noticed, again)

    def _read(self, connection: Connection, data: bytes) -> str | None:
        """The outcome when the answer is complete, None before. Raises `RuntimeError` for answers without a length."""
        whole: bytes | bytearray = data
        if connection.arrived is not None:
            connection.arrived += data
            whole = connection.arrived
            if len(whole) < connection.need:
                return None
        end = whole.find(b"\r\n\r\n")
        length = _LENGTH.search(whole, 0, end) if end >= 0 else None
        if end >= 0 and length is None:
            raise RuntimeError(f"an answer has no Content-Length: {bytes(whole[:200])!r}")
        connection.need = end + 4 + int(length[1]) if length is not None else 0
        if length is None or len(whole) < connection.need:
            if connection.arrived is None:
                connection.arrived = bytearray(data)
            return None
        connection.arrived, connection.need = None, 0
        notes = self._notes
        notes.answers += 1
        if whole[9:12] != b"200":
            code = _CODE.search(whole, end)
            return code[1].decode() if code is not None else bytes(whole[9:12]).decode("latin-1")
        if notes.answers % self._plan.sample == 0 and (timing := _TIMING.search(whole, 0, end)) is not None:
            notes.timings.append(bytes(timing[1]))
        return OK

    def _note(self, connection: Connection, answered: float, outcome: str) -> None:
        notes = self._notes
        number = notes.outcomes.setdefault(outcome, len(notes.outcomes))
        notes.records.extend((connection.due, connection.sent, answered, connection.which, number))
        connection.which = -1

    def _ready(self, connection: Connection, noticed: float, again: bool) -> None:
        """A connection whose request is over takes the next."""
        if again:
            self._next(connection, noticed)
        elif self._waiting:
            self._send(connection, *self._waiting.popleft())
        else:
            self._free.append(connection)

    def _send_rest(self, connection: Connection) -> None:
        if connection.rest is not None:
            try:
                connection.rest = connection.rest[connection.socket.send(connection.rest) :]
            except OSError:
                return
        if not connection.rest:
            connection.rest = None
            self._poll.modify(connection.socket, select.EPOLLIN)

    def _give_up(self, now: float, again: bool) -> None:
        limit = now - self._plan.patience
        for connection in [each for each in self._open.values() if each.which >= 0 and each.sent < limit]:
            self._replace(connection, UNANSWERED, now, again)

    def _replace(self, connection: Connection, outcome: str, now: float, again: bool) -> None:
        """A connection is of no use any more: note what was on it, and open another."""
        del self._open[connection.socket.fileno()]
        connection.socket.close()
        if connection.which >= 0:
            self._note(connection, now, outcome)
        else:
            self._free.remove(connection)
        self._connect()
        self._ready(self._free.pop(), now, again)

    def _connect(self) -> None:
        opened = socket.create_connection((self._plan.host, self._plan.port), self._plan.patience)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setblocking(False)
        self._poll.register(opened, select.EPOLLIN)
        connection = self._open[opened.fileno()] = Connection(opened)
        self._free.append(connection)


def serve(pipe: Any) -> None:
    """The life of a child process: a plan comes, the connections open, a start comes, what was seen goes back."""
    clients = Clients(pipe.recv())
    pipe.send(None)
    pipe.send(clients.run(pipe.recv()))
