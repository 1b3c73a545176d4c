"""Memory at addresses that stay: where inputs and outputs of a recorded CUDA graph are, and its image on the host."""

import ctypes
import weakref
from typing import Any, Protocol

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice

from app.backends.cuda import CudaDriver, cuda_driver
from app.backends.sessions import SessionConfig
from app.domain.tensors import Array

#: Bytes. Kernels read the first element of a tensor with their widest instruction.
ALIGNMENT = 256


class Block(Protocol):
    """Some bytes on the device, and as many on the host. Dispatcher thread, or that of the compile child."""

    @property
    def device(self) -> Any:
        """The `OrtDevice` whose memory it is."""

    @property
    def address(self) -> int:
        """Where it begins on the device; 256-byte aligned."""

    @property
    def host(self) -> Array:
        """Its image on the host, in bytes; nobody may keep a view of it beyond `close`."""

    def upload(self, nbytes: int) -> None:
        """Copy the first bytes from the host; when this returns they are there, for every stream."""

    def download(self, offset: int, nbytes: int) -> None:
        """Copy some bytes to the host, after all that runs on the device."""

    def close(self) -> None:
        """Free it; no graph may have it any more. Idempotent, and done by itself when nobody refers to it."""


def open_block(nbytes: int, config: SessionConfig) -> Block:
    """A block on the device of a backend. Raises `OSError`, or `MemoryError` when it does not fit."""
    if config.provider.needs_libraries:
        device = OrtDevice(OrtDevice.cuda(), OrtDevice.default_memory(), config.ordinal)
        return DeviceBlock(nbytes, cuda_driver(config.ordinal), device)
    return HostBlock(nbytes)


class HostBlock:
    """Where the host is the device there is nothing to copy."""

    def __init__(self, nbytes: int) -> None:
        self.device = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
        memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        self.host: Any = memory[-memory.ctypes.data % ALIGNMENT :][:nbytes]
        self.address = int(self.host.ctypes.data)

    def upload(self, nbytes: int) -> None:
        """It is there."""

    def download(self, offset: int, nbytes: int) -> None:
        """It is here."""

    def close(self) -> None:
        """Forget it."""
        self.host = None


class DeviceBlock:
    """On a CUDA device: the image is pinned where the system allows it, so that no copy is staged once more."""

    def __init__(self, nbytes: int, driver: CudaDriver, device: Any) -> None:
        self.device = device
        self._driver = driver
        self.address = driver.allocate(nbytes)
        self._free = weakref.finalize(self, driver.free, self.address)
        self._free.atexit = False
        self._free_host: Any = None
        try:
            pinned = driver.allocate_host(nbytes)
        except (MemoryError, OSError):  # a limit on locked memory, as in containers: copies are slower, not wrong
            self.host: Any = np.zeros(nbytes, np.uint8)
            return
        self._free_host = weakref.finalize(self, driver.free_host, pinned)
        self._free_host.atexit = False
        self.host = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pinned))

    def upload(self, nbytes: int) -> None:
        """One copy, and a wait for it."""
        self._driver.copy_in(self.address, self.host.ctypes.data, nbytes)

    def download(self, offset: int, nbytes: int) -> None:
        """A wait for the device, and one copy."""
        self._driver.copy_out(self.host.ctypes.data + offset, self.address + offset, nbytes)

    def close(self) -> None:
        """Give the memory back, the device's and the host's."""
        self.host = None
        self._free()
        if self._free_host is not None:
            self._free_host()
