"""Keeps child processes running: starts them, passes on what they say, starts them again when they end."""

import asyncio
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from signal import Signals

from app.scaleout.tether import tethered
from app.scaleout.workers import log_line

logger = logging.getLogger(__name__)

SECOND_DELAY, LONGEST_DELAY = 1.0, 30.0

#: Seconds after which a child that ended counts as having worked.
GOOD_SECONDS = 60.0

#: Most bytes of a line that a child logs.
_LONGEST_LINE = 1 << 20


class Backoff:
    """How long to wait before a child is started again: not at first, then 1 s, twice as long each time, at most 30 s.

    Whoever is killed once is missed, and starting takes seconds as it is.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def after(self, lived: float) -> float:
        """The seconds to wait for one that lived so long."""
        if lived >= GOOD_SECONDS:
            self._next = 0.0
        delay, self._next = self._next, min(max(self._next * 2, SECOND_DELAY), LONGEST_DELAY)
        return delay


class Child:
    """One child process and its successors. Event loop only.

    It has a process group of its own: what a terminal sends to all is passed on by its parent, once.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        before: Callable[[], Awaitable[None]] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """`before` runs before each start, `after` when one has started."""
        self.name = name
        self.starts = 0
        self._command = tethered(command)
        self._env = dict(env)
        self._pass_fds = tuple(pass_fds)
        self._before = before
        self._after = after
        self._process: Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the one that runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Until `stop`."""
        backoff, clock = Backoff(), asyncio.get_running_loop().time
        while not self._stopping.is_set():
            begun = clock()
            try:
                status = await self._live()
            except OSError as error:
                logger.error("%s cannot be started: %s", self.name, error)
                status = None
            if self._stopping.is_set():
                return
            delay = backoff.after(clock() - begun)
            if status is not None:
                logger.warning("%s ended (%s): again in %g s", self.name, _obituary(status), delay)
            try:
                await asyncio.wait_for(self._stopping.wait(), delay)
            except TimeoutError:
                continue

    def signal(self, number: Signals) -> None:
        """Send a signal to the one that runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def stop(self, number: Signals) -> None:
        """Send a signal, and start no other."""
        self._stopping.set()
        self.signal(number)

    async def _live(self) -> int:
        if self._before is not None:
            await self._before()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._env,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            limit=_LONGEST_LINE,
            pass_fds=self._pass_fds,
            process_group=0,
        )
        self.starts += 1
        if self._after is not None:
            self._after()
        if self._stopping.is_set():
            process.kill()
        assert process.stdout is not None
        said = asyncio.ensure_future(self._pass_on(process.stdout))
        status = await process.wait()
        # What it started may hold the pipe for longer.
        await asyncio.wait([said], timeout=1.0)
        said.cancel()
        return status

    async def _pass_on(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await output.readline()
            except ValueError:  # too long: what was read of it is dropped
                continue
            if not line:
                return
            sys.stderr.write(log_line(self.name, line.decode(errors="replace")))
            sys.stderr.flush()


def _obituary(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    return Signals(-status).name
