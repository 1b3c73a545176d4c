"""The command line: `inference-server serve`."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil

import uvicorn

from app.api.fastpath import FastPathProtocol
from app.domain.errors import ServingError
from app.main import create_app
from app.settings import Settings, SettingsError

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


def end_process(code: int) -> None:
    """End now. Not `sys.exit`: that waits for hook threads, and a hook that never returns must not keep the process."""
    logging.shutdown()
    os._exit(code)


def serve(_: argparse.Namespace) -> None:
    """Serve until a signal comes; 0 after a clean drain."""
    settings = Settings.load()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    endpoints = settings.endpoints
    config = uvicorn.Config(
        create_app(settings),
        host=endpoints.host,
        port=endpoints.port,
        http=FastPathProtocol if endpoints.fast_path else "httptools",
        loop="auto",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        timeout_keep_alive=ceil(endpoints.keep_alive_seconds),
        ssl_certfile=endpoints.ssl_certfile,
        ssl_keyfile=endpoints.ssl_keyfile,
    )
    server = Server(config)
    server.run()
    end_process(0 if server.started else 3)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    parser = argparse.ArgumentParser(prog="inference-server", description="Serve ONNX models over HTTP.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the bundles in model_dirs").set_defaults(run=serve)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except (SettingsError, ServingError) as error:
        sys.exit(f"inference-server: {error}")
