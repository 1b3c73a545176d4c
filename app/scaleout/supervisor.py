"""Keeps child processes running: starts them, passes on what they say, starts them again when they end."""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
        after: Callable[[], None] | None = None,
    ) -> None:
        """`after` is called whenever one has started."""
        self.name = name
        self.starts = 0
        self._command = tethered(command)
        self._env = dict(env)
        self._pass_fds = tuple(pass_fds)
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
        # A pipe of our own: with one of asyncio's a process has not ended before whatever it started has closed it too.
        ours, theirs = os.pipe()
        output = asyncio.StreamReader(_LONGEST_LINE)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), os.fdopen(ours, "rb", 0))
        try:
            process = await self._start(theirs)
            said = asyncio.ensure_future(self._pass_on(output))
            status = await process.wait()
            await asyncio.wait([said], timeout=1.0)
            said.cancel()
        finally:
            pipe.close()
        return status

    async def _start(self, output: int) -> Process:
        """Start one that says what it has to say on a descriptor, which is its own from then on."""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._env,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                pass_fds=self._pass_fds,
                process_group=0,
            )
        finally:
            os.close(output)
        self.starts += 1
        if self._after is not None:
            self._after()
        if self._stopping.is_set():
            process.kill()
        return process

    async def _pass_on(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await output.readline()
            except ValueError:  # too long: what was read of it is dropped
                continue
            if not line:
                return
            with suppress(OSError):  # whoever read our log is gone: children that nobody reads would stand still
                sys.stderr.write(log_line(self.name, line.decode(errors="replace")))
                sys.stderr.flush()


def _obituary(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    return Signals(-status).name
