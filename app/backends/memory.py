"""How much memory the process and the device have in use."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from app.backends.base import DeviceMemory

_LIBC = ctypes.CDLL(None)

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def private_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes of this process's memory that no file backs; 0 where the system does not say.

    Mapped weights are left out: the resident set counts them once for every session that maps them.
    """
    try:
        _, resident, shared, *_ = statm.read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def trim_heap() -> None:
    """Give freed memory back to the system; 0.1 ms, 20 ms when there is much.

    Every session packs its weights once more before it finds them packed in the file, and the C library would keep
    what that took: 100 MB for a model of 100 MB.
    """
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


def advise(directory: Path, advice: int) -> None:
    """Tell the system what becomes of the files in a directory, in its page cache; harmless where it cannot listen."""
    for file in directory.iterdir():
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, advice)
            finally:
                os.close(descriptor)


class CudaDriver:
    """The few calls of the CUDA driver that ONNX Runtime has no name for. Device ordinals are CUDA's own."""

    def __init__(self, ordinal: int) -> None:
        """Raises `OSError` when there is no driver, or no such device."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._device = ctypes.c_int()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(self._device), ordinal))

    def memory(self) -> DeviceMemory:
        """What is in use on the device, by whomever, and its size. Any thread."""
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device))
        try:
            self._check(self._driver.cuCtxPushCurrent_v2(context))
            try:
                self._check(self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
            finally:
                self._driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        finally:
            self._driver.cuDevicePrimaryCtxRelease_v2(self._device)
        return DeviceMemory(in_use=total.value - free.value, limit=total.value)

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise OSError(f"the CUDA driver answers error {status}")
