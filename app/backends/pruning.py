"""Keeping the compile cache within its bound: who uses an entry holds a lock on it, and the least recently used go."""

import fcntl
import logging
import os
import shutil
import weakref
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)


class Lease:
    """A shared lock on a file, held until nobody refers to this object, or the process ends however it ends."""

    def __init__(self, descriptor: int) -> None:
        weakref.finalize(self, os.close, descriptor)


def lease(file: Path) -> Lease | None:
    """A lease on an entry, by its manifest; None when the entry is being removed. Marks it as used now.

    Raises `OSError` when it is gone. On a file system without locks the lease protects nothing.
    """
    descriptor = os.open(file, os.O_RDONLY)
    held = Lease(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return held
    if not _is_the_same(file, descriptor):
        return None
    with suppress(OSError):  # read-only for us: then it is as old as it is
        os.utime(file)
    return held


def occupy(directory: Path) -> Lease:
    """A lock on a directory that is being written."""
    descriptor = os.open(directory, os.O_RDONLY)
    held = Lease(descriptor)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return held


def is_occupied(directory: Path) -> bool | None:
    """Whether a process writes there; None where the file system knows no locks. Raises `OSError` when it is gone."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def prune(entries: Path, manifest: str, aside: Path, most_bytes: int) -> int:
    """Remove entries that no process uses, the least recently used first, until all together have `most_bytes`.

    Returns how many bytes are left.
    """
    found = sorted(_found(entries, manifest))
    total = sum(nbytes for _, nbytes, _ in found)
    for _, nbytes, path in found:
        if total <= most_bytes:
            break
        if _remove(path, manifest, aside):
            total -= nbytes
            _log.info("compile cache: removed %s (%d bytes), which was used the longest ago", path.name, nbytes)
    return total


def _found(entries: Path, manifest: str) -> list[tuple[float, int, Path]]:
    """(When it was used, bytes, path) of every entry."""
    found = []
    for path in entries.iterdir():
        with suppress(OSError):  # another process removes it
            nbytes = sum(file.stat().st_size for file in path.iterdir())
            found.append(((path / manifest).stat().st_mtime, nbytes, path))
    return found


def _remove(path: Path, manifest: str, aside: Path) -> bool:
    """Whether the entry was removed: not while somebody holds a lease on it."""
    try:
        descriptor = os.open(path / manifest, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_the_same(path / manifest, descriptor):
            return False
        target = aside / f"{path.name}.pruned"
        path.rename(target)  # nobody finds it half removed
        shutil.rmtree(target, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_the_same(file: Path, descriptor: int) -> bool:
    """Whether the file that was opened is still the one of that name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except OSError:
        return False
