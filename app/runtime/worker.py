"""A process that works for this one, at the other end of a channel."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.runtime.hook_channel import Channel

logger = logging.getLogger(__name__)

#: Where `app` is imported from: the worker has to find the same one.
_ROOT = Path(__file__).parents[2]


class Worker:
    """One worker process, from its start to its end. It executes `command`, for which the two descriptors are given.

    Its parent is a thread that does nothing but wait for its end: the kernel ends a process with the *thread* that
    started it, and somebody has to take note of its status. That thread is called `thread_name`, and `owner` is what
    the log says of it. Raises `OSError` when it cannot be started.
    """

    def __init__(self, owner: str, thread_name: str, command: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create(thread_name)
        self.channel = Channel(ours, memory)
        started: Future[subprocess.Popen[bytes]] = Future()
        keep = partial(_keep, owner, command, ours, theirs, memory, started)
        threading.Thread(target=keep, name=thread_name, daemon=True).start()
        self._process = started.result()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def finish(self) -> None:
        """Let it end after the call it is in (any thread)."""
        with suppress(OSError):  # it has ended
            self.channel.finish()

    def end(self) -> str:
        """End it now, if it has not ended yet, and say how it ended."""
        self._process.kill()
        return _fate(self._process.wait())


def _keep(
    owner: str,
    command: str,
    ours: socket.socket,
    theirs: socket.socket,
    memory: int,
    started: "Future[subprocess.Popen[bytes]]",
) -> None:
    """Start a process and wait for its end."""
    descriptors = (theirs.fileno(), memory)
    path = [str(_ROOT), *filter(None, sys.path)]
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", command, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                # An interrupt from the terminal is the server's to handle. Not a session of its own: the kernel may
                # give each session an equal share, and the niceness of a worker would count for nothing.
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(process)
    status = process.wait()
    with suppress(OSError):  # its own children may hold its end open: nobody must wait for an answer
        ours.shutdown(socket.SHUT_RDWR)
    if status:
        logger.error(
            "%s: %s %d %s", owner, threading.current_thread().name.replace("_", " "), process.pid, _fate(status)
        )


def _fate(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"died of signal {-status} ({signal.strsignal(-status)})"
