"""How long a connection waits for its client: to ask, to finish asking, to take its answers."""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.answers import Answers

#: Seconds that a connection goes on reading after the answer to a request that it did not read to its end: closing at
#: once would reset it, and a reset takes the answer from the client.
LINGER_SECONDS = 5.0

#: Of a body, and of an answer, so many bytes a second must move: who is slower holds memory for nothing.
LEAST_RATE = 512


#: After so many bytes of a body at once the other connections get their turn.
GIVE_WAY_BYTES = 65_536


class Patience:
    """The time limits of one connection, on one timer that looks now and then. Event loop only.

    A timer per request would cost more than the rest of reading it. `since` is the last time that the client had done
    what is expected of it; `expected` gives the deadline of the request of which it owes the rest, None where it owes
    none; `give_up` is called when that does not come.
    """

    def __init__(
        self,
        connection: HttpToolsProtocol,
        answers: Answers,
        read_timeout: float,
        expected: Callable[[], float | None],
        give_up: Callable[[], None],
    ) -> None:
        self._transport = connection.transport
        self._flow = connection.flow
        self._connection = connection
        self._answers = answers
        self._read_timeout = read_timeout
        server: Any = connection  # whose types say int: any number will do, where compiled code does not rely on them
        self._keep_alive = float(server.timeout_keep_alive)
        self._expected = expected
        self._give_up = give_up
        self._lingers = False
        self._unsent: float = inf
        self.since = monotonic()
        self._timer = connection.loop.call_later(min(self._read_timeout, self._keep_alive), self._look)

    def took(self, nbytes: int, now: float) -> None:
        """So many bytes of a body came: worth their time at the least rate.

        After many no more are read before it is this connection's turn: the loop takes megabytes of one in a row where
        they are.
        """
        self.since = min(self.since + nbytes / LEAST_RATE, now)
        if nbytes >= GIVE_WAY_BYTES:
            self._transport.pause_reading()
            self._answers.turns.ask(self._listen)

    def _listen(self) -> None:
        if not self._flow.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def cancel(self) -> None:
        """Stop looking."""
        self._timer.cancel()

    def linger(self) -> None:
        """Close the connection soon: until then it only reads what its client still sends."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._flow.resume_reading()
        self._lingers = True
        self.since = monotonic()
        self._arm()

    def hurry(self) -> None:
        """What arrives has a deadline, which may be sooner than the next look."""
        self._arm()

    def _arm(self) -> None:
        self._timer.cancel()
        # Never later than the shortest limit: what the client owes may change before.
        wait = min(self._due() - monotonic(), self._read_timeout, self._keep_alive)
        self._timer = self._connection.loop.call_later(max(wait, 0.0), self._look)

    def _look(self) -> None:
        if self._transport.get_protocol() is not self._connection:
            return  # it was upgraded
        if self._flow.read_paused and not self._flow.write_paused and not self._transport.is_closing():
            self.since = monotonic()  # nobody listened
        if self._due() <= monotonic():
            self._expire()
        self._arm()  # on a closing transport too: the client may never take the rest of its answer

    def _due(self) -> float:
        deadline = self._owed()
        if deadline is not None and not self._flow.write_paused:
            return min(self.since + self._read_timeout, deadline)
        if self._answers.current is not None and not self._flow.write_paused:
            return inf
        return max(self.since, self._answers.since) + (LINGER_SECONDS if self._lingers else self._keep_alive)

    def _owed(self) -> float | None:
        """What is `expected`, as long as it would be read."""
        return None if self._transport.is_closing() else self._expected()

    def _expire(self) -> None:
        if self._owed() is not None and not self._flow.write_paused:
            self._give_up()
            return
        unsent = float(self._transport.get_write_buffer_size())
        if not unsent:
            self._transport.close()
        elif self._answers.since <= self.since and self._unsent - unsent < LEAST_RATE * self._keep_alive:
            self._transport.abort()  # the client takes no more of its answer
        else:
            self._unsent, self.since = unsent, monotonic()
