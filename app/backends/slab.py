"""All the weights of a model in one block of memory: what a load brings to the device, and an eviction frees.

A block of its own, and not tensors from the arena: an arena keeps what it is given back.
"""

import weakref
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice

from app.backends.cuda import CudaDriver, cuda_driver
from app.backends.sessions import SessionConfig


class Slab(Protocol):
    """The bytes of a weights file, at one address."""

    @property
    def device(self) -> Any:
        """The `OrtDevice` whose memory it is."""

    @property
    def address(self) -> int:
        """Where it begins; 64-byte aligned."""

    def close(self) -> None:
        """Free it; no session may have it bound. Idempotent, and done by itself when nobody refers to it."""


def open_slab(file: Path, config: SessionConfig) -> Slab:
    """The weights file in the memory of the device. Raises `OSError`, or `MemoryError` when it does not fit."""
    if config.provider.needs_libraries:
        device = OrtDevice(OrtDevice.cuda(), OrtDevice.default_memory(), config.ordinal)
        return DeviceSlab(file, cuda_driver(config.ordinal), device)
    return HostSlab(file)


class HostSlab:
    """On the host the file is mapped: loading reads nothing, and the system shares it among processes."""

    def __init__(self, file: Path) -> None:
        self.device = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
        self._map: Any = np.memmap(file, np.uint8, "r")
        self.address = int(self._map.ctypes.data)

    def close(self) -> None:
        """Unmap the file."""
        self._map = None


class DeviceSlab:
    """On a CUDA device: allocated and filled by the driver. Any thread, beside running executions."""

    def __init__(self, file: Path, driver: CudaDriver, device: Any) -> None:
        self.device = device
        content = np.memmap(file, np.uint8, "r")
        self.address = driver.allocate(content.nbytes)
        self._free = weakref.finalize(self, driver.free, self.address)
        self._free.atexit = False
        driver.copy_in(self.address, content.ctypes.data, content.nbytes)

    def close(self) -> None:
        """Give the memory back to the device."""
        self._free()
