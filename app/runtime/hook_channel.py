"""One end of the line between the server and a hook process: a socket, and shared memory for what is large.

Question and answer alternate, so one piece of memory, written over and over, serves both directions. It has no name: it
is gone with the two processes, however they end. It is read and written by system calls, not mapped, because those copy
without holding the interpreter.
"""

import os
import pickle
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Bytes from which something goes through the shared memory: below, two more system calls cost more than copying twice.
LARGE = 1 << 16

#: Bytes of shared memory that stay allocated from one message to the next.
KEPT = 1 << 24

_MOST_BUFFERS = 500  # half of what one vectored system call takes

_COUNT = struct.Struct("<I")

_PACKET_BYTES = _COUNT.size + 8 * (_MOST_BUFFERS + 1) + LARGE


class Channel:
    """Sends and receives one picklable value at a time; arrays keep dtype, shape and bytes. One thread at a time.

    `memory` is the descriptor of an anonymous file. Both are closed when nobody holds the channel any more: the thread
    that ends it need not be the one that is reading.
    """

    def __init__(self, connection: socket.socket, memory: int) -> None:
        self._connection = connection
        self._memory = memory
        self._packet = memoryview(bytearray(_PACKET_BYTES))
        weakref.finalize(self, _close, connection, memory).atexit = False

    def send(self, value: object) -> None:
        """Send a value. Raises `OSError`, `BrokenPipeError` where the other end is gone, or what pickling raises."""
        large: list[memoryview] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < LARGE or len(large) == _MOST_BUFFERS:
                return True
            large.append(raw)
            return False

        payload = pickle.dumps(value, 5, buffer_callback=stays)
        if len(payload) > LARGE:
            large.insert(0, memoryview(payload))
            payload = b""
        sizes = [view.nbytes for view in large]
        _transfer(os.pwritev, self._memory, large)
        self._connection.sendall(_COUNT.pack(len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + payload)

    def receive(self, timeout: float | None = None) -> Any:
        """Wait for a value, at most `timeout` seconds.

        Raises `TimeoutError`, `EOFError` where the other end is gone, `OSError`, or what unpickling raises.
        """
        self._connection.settimeout(timeout)
        received = self._connection.recv_into(self._packet)
        if not received:
            raise EOFError("the other end is gone")
        (count,) = _COUNT.unpack_from(self._packet)
        sizes = struct.unpack_from(f"<{count}Q", self._packet, _COUNT.size)
        payload = self._packet[_COUNT.size + 8 * count : received]
        # New memory for each: the shared one belongs to the next message as soon as this one is answered.
        large = [np.empty(size, dtype=np.uint8).data for size in sizes]
        _transfer(os.preadv, self._memory, large)
        if sum(sizes) > KEPT:
            os.ftruncate(self._memory, 0)
        if not payload:
            payload = large.pop(0)
        return pickle.loads(payload, buffers=large)

    def finish(self) -> None:
        """Tell the other end that nothing more will come; an answer under way still arrives (any thread)."""
        self._connection.shutdown(socket.SHUT_WR)


def _transfer(move: Callable[[int, list[memoryview], int], int], memory: int, buffers: Sequence[memoryview]) -> None:
    """Move whole buffers, one behind the other; a system call moves 2 GB at most."""
    views, offset = list(buffers), 0
    while views:
        moved = move(memory, views, offset)
        if not moved:
            raise EOFError("the shared memory is shorter than its message")
        offset += moved
        while views and moved >= views[0].nbytes:
            moved -= views.pop(0).nbytes
        if moved:
            views[0] = views[0][moved:]


def _close(connection: socket.socket, memory: int) -> None:
    connection.close()
    os.close(memory)
