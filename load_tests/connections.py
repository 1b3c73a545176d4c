"""Clients of one plain socket each: they see when an answer comes, and leave in every way there is."""

import http.client
import socket
import struct
from types import TracebackType
from typing import Self

from load_tests.processes import Server

#: Longer than anything that is waited for.
PATIENCE_SECONDS = 60.0

#: SO_LINGER for zero seconds: closing sends a reset.
_AT_ONCE = struct.pack("ii", 1, 0)


class Connection:
    """One connection to a server. It closes at the end of a `with` block."""

    def __init__(self, server: Server) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """Wait for the next answer: its status and its body."""
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        return response.status, response.read()

    def close(self) -> None:
        """Leave as one should."""
        self.socket.close()

    def reset(self) -> None:
        """Leave without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.socket.close()
