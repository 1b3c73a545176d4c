"""The child process that compiles: started when it is needed, asked one job at a time, and how it dies."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

CHILD_MODULE = "app.backends.compile_child"

#: Seconds after which a child that has not answered is taken to hang. Tens of GB of weights, read, written and run at
#: every size, take many minutes; nothing that ends takes this long.
ANSWER_SECONDS = 3600.0

#: Signals that a process brings upon itself. What kills it from outside says nothing about what it was doing.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)

#: Where `app` is imported from: the child has to find the same one.
_ROOT = Path(__file__).parents[2]


class ChildDiedError(Exception):
    """The compile child ended without an answer; the message says how.

    `crashed` says that it was its own doing, `killed` that it came from outside, as from the kernel when memory is
    short; neither, that it never worked, or that compiling was `stopped`. `status` is how it exited, negative for a
    signal.
    """

    def __init__(self, message: str, status: int = 0, *, stopped: bool = False) -> None:
        super().__init__(message)
        self.stopped = stopped
        self.crashed = -status in _CRASHES
        self.killed = status < 0 and not self.crashed


class CompileChild:
    """The child process, started when it is needed; it ends by itself after a while without work."""

    def __init__(self, module: str = CHILD_MODULE, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._module = module
        self._answer_seconds = answer_seconds
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None
        self._asking = False
        self._closed = False

    def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """One job, one answer; the child that is `spent` with it is ended.

        Raises `ChildDiedError` when the child ends, or has to be ended, instead.
        """
        self._asking = True
        try:
            return self._ask(job)
        finally:
            self._asking = False
            if self._closed:
                self._release()

    def _ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(2):
            process = self._running()
            if self._closed:  # just now, when there was nothing to kill yet
                process.kill()
            answer = self._exchange(process, json.dumps(job))
            if answer:
                result: Mapping[str, Any] = json.loads(answer)
                if result.get("spent"):  # however it ends, it must not take the next job with it
                    process.kill()
                    process.wait()
                return result
            status = process.wait()
            if status != 0 and not self._closed:
                message = f"the compile child {_obituary(status)}{self._last_words()}"
                raise ChildDiedError(message, status)
            # Status 0: it went idle in the moment in which it was asked.
        raise ChildDiedError("the compile child does not stay")

    def close(self) -> None:
        """End the child, at work or not, and start no other. Any thread; idempotent."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()
        if not self._asking:  # else the pipes are still waited for: `ask` releases them
            self._release()

    def _running(self) -> subprocess.Popen[str]:
        if self._closed:
            raise ChildDiedError("compiling was stopped", stopped=True)
        if self._process is None or self._process.poll() is not None:
            self._release()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
            path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                # An interrupt from the terminal is the server's to handle. Not a session of its own: where the kernel
                # groups processes by session, being nice counts among the processes of that session alone.
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )
        return self._process

    def _exchange(self, process: subprocess.Popen[str], line: str) -> str:
        """The answer line; empty when the child is gone. Raises `ChildDiedError` when none comes in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self._answer_seconds):
                process.kill()
                process.wait()
                raise ChildDiedError(f"the compile child was ended: no answer in {self._answer_seconds:g} s")
        return process.stdout.readline()

    def _last_words(self) -> str:
        """The end of what the child wrote to standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 500))
        lines = self._errors.read().decode(errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({words})" if words else ""

    def _release(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # closing flushes, and nobody reads
                        pipe.close()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _obituary(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"died of {signal.Signals(-status).name}"
    except ValueError:
        return f"died of signal {-status}"
