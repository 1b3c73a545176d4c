"""The few calls of the CUDA driver that ONNX Runtime has no name for."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

from app.backends.base import DeviceMemory

_OUT_OF_MEMORY = 2

#: The mode of a thread in which what other threads record forbids it nothing.
_RELAXED = 2

_NAME_BYTES = 256


@cache
def cuda_driver(ordinal: int) -> "CudaDriver":
    """The driver of a device; one a process, since it holds the device's context. Raises `OSError` as it does."""
    return CudaDriver(ordinal)


def physical_ordinal(ordinal: int) -> str:
    """The ordinal that a device has where all are visible; as it is where devices are named otherwise."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return visible[ordinal] if ordinal < len(visible) and visible[ordinal].isdigit() else str(ordinal)


class CudaDriver:
    """One device; ordinals are CUDA's own. Calls are for any thread.

    They raise `MemoryError` when the device is full and `OSError`, with CUDA's number, for all else.
    """

    def __init__(self, ordinal: int, library: Any = None) -> None:
        """Raises `OSError` when there is no driver, or no such device."""
        self._driver = library or ctypes.CDLL("libcuda.so.1")
        self._device = ctypes.c_int()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(self._device), ordinal))

    @property
    def total_bytes(self) -> int:
        """The size of the device's memory."""
        total = ctypes.c_size_t()
        self._check(self._driver.cuDeviceTotalMem_v2(ctypes.byref(total), self._device))
        return total.value

    @property
    def identity(self) -> str:
        """Which device this is, and which driver: what was proved on one says nothing of another."""
        name, version = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_int()
        self._check(self._driver.cuDeviceGetName(name, ctypes.c_int(_NAME_BYTES), self._device))
        self._check(self._driver.cuDriverGetVersion(ctypes.byref(version)))
        return f"{name.value.decode(errors='replace')}, driver {version.value}"

    def memory(self) -> DeviceMemory:
        """What is in use on the device, by whomever, and its size."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._in_context():
            self._check(self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return DeviceMemory(in_use=total.value - free.value, limit=total.value)

    def allocate(self, nbytes: int) -> int:
        """The address of so many bytes of device memory."""
        address = ctypes.c_uint64()
        with self._in_context():
            self._check(self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)))
        return address.value

    def copy_in(self, address: int, source: int, nbytes: int) -> None:
        """Copy host memory to the device; when this returns it is there, for every stream."""
        with self._in_context():
            target, origin = ctypes.c_uint64(address), ctypes.c_void_p(source)
            self._check(self._driver.cuMemcpyHtoD_v2(target, origin, ctypes.c_size_t(nbytes)))
            # The copy is ordered before nothing in the streams of sessions, and may outlast the call.
            self._check(self._driver.cuStreamSynchronize(None))

    def copy_out(self, target: int, address: int, nbytes: int) -> None:
        """Copy device memory to the host, after all that runs on the device; when this returns it is there."""
        with self._in_context():
            self._check(self._driver.cuCtxSynchronize())
            place, origin = ctypes.c_void_p(target), ctypes.c_uint64(address)
            self._check(self._driver.cuMemcpyDtoH_v2(place, origin, ctypes.c_size_t(nbytes)))

    def allocate_host(self, nbytes: int) -> int:
        """The address of so many bytes of host memory that stay in place, so that the device copies by itself."""
        address = ctypes.c_void_p()
        with self._in_context():
            self._check(self._driver.cuMemAllocHost_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)))
        return address.value or 0

    def free_host(self, address: int) -> None:
        """Give memory back that `allocate_host` took."""
        with self._in_context():
            self._check(self._driver.cuMemFreeHost(ctypes.c_void_p(address)))

    def free(self, address: int) -> None:
        """Give memory back that `allocate` took. Waits for what runs on the device."""
        with self._in_context():
            self._check(self._driver.cuMemFree_v2(ctypes.c_uint64(address)))

    @contextmanager
    def beside_captures(self) -> Iterator[None]:
        """Let this thread allocate and copy while another records a CUDA graph, and leave that recording whole.

        By default either of these breaks the recording, and fails itself. Not for the thread that records.
        """
        mode = ctypes.c_int(_RELAXED)
        self._check(self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        try:
            yield
        finally:
            self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            with self.beside_captures():
                yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    @cached_property
    def _context(self) -> ctypes.c_void_p:
        """The context that ONNX Runtime uses too; held for good, since what is allocated in it goes with it."""
        context = ctypes.c_void_p()
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device))
        return context

    @staticmethod
    def _check(status: int) -> None:
        if status == _OUT_OF_MEMORY:
            raise MemoryError("CUDA error 2 of the driver: out of memory")
        if status != 0:
            raise OSError(f"CUDA error {status} of the driver")
