"""The uvicorn server as this process needs it: it owns its signals, and says where it listens."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import NoReturn

import uvicorn

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """A uvicorn server that owns its signals: the first drains while the sockets stay open, the second ends at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn around serving, on the running loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._drain is not None:
            logger.warning("second signal: ending at once")
            os._exit(128 + number)
        loop = asyncio.get_running_loop()
        timeout = self.lifespan.state.get("shutdown_timeout", 0.0)
        loop.call_later(timeout, end_process, 0)  # whatever still holds on: a slow reader, a hook, a load
        self._drain = loop.create_task(self._drain_then_exit(loop.time() + timeout - 1.0))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn, which says where it runs only if it opened the sockets itself."""
        await super().startup(sockets)
        self._log_started_message(sockets or ())

    _drain: asyncio.Task[None] | None = None

    async def _drain_then_exit(self, limit: float) -> None:
        try:
            drain = self.lifespan.state.get("drain")
            if drain is not None:
                await drain()
        finally:
            remaining = limit - asyncio.get_running_loop().time()
            self.config.timeout_graceful_shutdown = ceil(max(remaining, 1.0))  # for answers that are being read
            self.should_exit = True


def end_process(code: int) -> NoReturn:
    """End now. Not `sys.exit`: that waits for hook threads, and a hook that never returns must not keep the process."""
    logging.shutdown()
    os._exit(code)
