"""The memory of this process and the system's page cache: how much is in use, and giving it back."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None)

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

#: Bytes. Allocations from here on are mappings of their own; the heap of a thread keeps no more than this at its end.
_LARGE = 4 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def private_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes of this process's memory that no file backs; 0 where the system does not say.

    Mapped weights are left out: the resident set counts them once for every session that maps them.
    """
    try:
        _, resident, shared, *_ = statm.read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def bound_heaps() -> None:
    """Let what is large go back to the system when it is freed, whichever thread had it.

    Left alone, the C library takes ever larger allocations from the heap of their thread, up to 32 MB, and leaves twice
    that at the end of each such heap, where trimming does not reach: a model's weights once more, for every thread that
    has loaded one.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, _LARGE)


def usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or less where its control group says so."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(path).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            return min(physical, int(limit))
    return physical


def trim_heap() -> None:
    """Give freed memory back to the system; 0.1 ms, 20 ms when there is much.

    Every session packs its weights once more before it finds them packed in the file, and the C library would keep
    what that took: 100 MB for a model of 100 MB.
    """
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def advise(directory: Path, advice: int) -> None:
    """Tell the system what becomes of the files in a directory, in its page cache; harmless where it cannot listen.

    As harmless where the directory is gone: an operator may have removed the compile cache.
    """
    try:
        files = tuple(directory.iterdir())
    except OSError:
        return
    for file in files:
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, advice)
            finally:
                os.close(descriptor)
