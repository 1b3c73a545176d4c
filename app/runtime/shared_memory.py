"""Shared memory of clients, under the names that were registered for it: read and written, never mapped.

A mapping ends the process with SIGBUS as soon as its owner shortens the object. System calls say so instead, and copy
without holding the interpreter.
"""

import logging
import os
import stat
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from app.domain.errors import InvalidRequest, RegionNotFound, Unsupported

logger = logging.getLogger(__name__)

#: Where Linux has POSIX shared memory objects: a file each, without further directories.
DIRECTORY = "/dev/shm"

_MAX_NAME = 255


class Region:
    """A registered piece of a shared memory object. Any thread.

    Whoever holds it may use it, also when it was unregistered meanwhile, or the object's name is gone: the descriptor
    is closed when nobody does, and never given to another file before.
    """

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the object. Raises `InvalidRequest`."""
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self._file = _open(name, key)
        weakref.finalize(self, os.close, self._file).atexit = False
        self._require(offset, byte_size)

    def check(self, offset: int, size: int) -> None:
        """Raise `InvalidRequest` where `size` bytes from `offset` on are not within the region."""
        if offset + size > self.byte_size:
            raise InvalidRequest(
                f"shared memory region {self.name!r} has {self.byte_size} bytes: {size} bytes from byte {offset} on "
                f"are not within it"
            )

    def read(self, offset: int, size: int) -> memoryview:
        """A copy of a piece of the region. Raises `InvalidRequest`, also for an object that has become too short."""
        self.check(offset, size)
        self._require(self.offset + offset, size)
        whole = np.empty(size, np.uint8).data
        filled = 0
        while filled < size:
            count = os.preadv(self._file, [whole[filled:]], self.offset + offset + filled)
            if not count:
                self._require(self.offset + offset, size)
                break
            filled += count
        return whole

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes into the region. Raises `InvalidRequest`, also for an object that has become too short."""
        view = memoryview(data)
        self.check(offset, len(view))
        self._require(self.offset + offset, len(view))
        written = 0
        try:
            while written < len(view):
                written += os.pwrite(self._file, view[written:], self.offset + offset + written)
        except OSError as error:
            raise InvalidRequest(f"shared memory region {self.name!r} cannot be written: {error.strerror}") from None

    def _require(self, offset: int, size: int) -> None:
        """That the object has these bytes now: its owner may shorten it at any time."""
        length = os.fstat(self._file).st_size
        if offset + size > length:
            raise InvalidRequest(
                f"shared memory region {self.name!r}: its object {self.key!r} has {length} bytes, "
                f"{size} bytes from byte {offset} on are not within them"
            )


class Regions:
    """The registered regions. The event loop changes the mapping as a whole; any thread reads it."""

    def __init__(self) -> None:
        self.known: Mapping[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Offer a piece of a shared memory object under a name. Raises `InvalidRequest` or `Unsupported`."""
        if name in self.known:
            raise Unsupported(
                f"shared memory region {name!r} is registered already: unregister it first", reason="region_exists"
            )
        self.known = {**self.known, name: Region(name, key, offset, byte_size)}
        facts = {"name": name, "key": key, "offset": offset, "byte_size": byte_size}
        logger.info("shared memory region registered", extra={"facts": facts})

    def unregister(self, name: str) -> None:
        """Forget a region; nothing where there is none of that name. Requests under way keep it."""
        if name in self.known:
            self.known = {other: region for other, region in self.known.items() if other != name}
            logger.info("shared memory region unregistered", extra={"facts": {"name": name}})

    def find(self, name: str) -> Region:
        """The region. Raises `RegionNotFound`."""
        region = self.known.get(name)
        if region is None:
            raise RegionNotFound(f"no shared memory region {name!r:.100} is registered")
        return region

    def hold(self, names: Sequence[str]) -> dict[str, Region]:
        """The regions that a request names. Raises `InvalidRequest`: it is the request that is wrong."""
        try:
            return {name: self.find(name) for name in names}
        except RegionNotFound as error:
            raise InvalidRequest(error.message, reason=error.code) from None


def _open(name: str, key: str) -> int:
    """A descriptor of the object, for reading and writing.

    As `shm_open`: slashes in front mean nothing, any other, and a link, would lead elsewhere. Not blocking: what lies
    there may be a pipe.
    """
    file = key.lstrip("/")
    if file in ("", ".", "..") or "/" in file or "\0" in file or len(file.encode()) > _MAX_NAME:
        raise InvalidRequest(
            f"'key' of shared memory region {name!r} is no name of a shared memory object: {key!r:.100}"
        )
    try:
        descriptor = os.open(f"{DIRECTORY}/{file}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(
            f"shared memory region {name!r}: object {key!r} cannot be opened: {error.strerror}"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidRequest(f"shared memory region {name!r}: {key!r} is no shared memory object")
    return descriptor
