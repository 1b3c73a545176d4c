"""Devices that are none: the form of weights that accelerators get, on the CPU; and a driver over host memory."""

import ctypes
from dataclasses import replace

import numpy as np

from app.backends.entry import BOUND, EXTERNAL, PLAIN
from app.backends.onnxruntime import OnnxRuntimeBackend
from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig
from app.domain.config import RuntimeConfig


def bound_config(threads=1):
    """The CPU, asked for bound weights first."""
    return SessionConfig(replace(PROVIDERS["cpu"], forms=(BOUND, EXTERNAL, PLAIN)), 0, threads)


def bound_on_cpu(cache_dir, **runtime):
    """A backend over it; whoever makes it closes it."""
    return OnnxRuntimeBackend(bound_config(), RuntimeConfig(backend="cpu", **runtime), cache_dir)


def recorded_on_cpu(cache_dir, **runtime):
    """A backend that records and replays all it can, on a device that is the host; whoever makes it closes it.

    Nothing is captured there: a recording executes over its block, its own session and the slab, at the same addresses.
    """
    config = bound_config()
    provider = replace(config.provider, graphs=True)
    chosen = replace(config, provider=provider, graphs=True)
    return OnnxRuntimeBackend(chosen, RuntimeConfig(backend="cpu", **runtime), cache_dir)


class HostDriver:
    """The calls of the CUDA driver, over host memory that is full of NaN when it is given and when it is taken back.

    What was taken back is given to nobody else, so that whoever still looks there finds NaN. `status` is what a call of
    that name answers instead of doing anything; `calls` are the names of all.
    """

    TOTAL = 1 << 20

    def __init__(self):
        self.calls = []
        self.status = {}
        self.blocks = {}
        self.pinned = {}
        self.mode = 0
        self.modes = {}
        self.freed = []
        self.depth = 0
        self.retained = 0

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name.startswith("cuMem"):
                self.modes[name] = self.mode
            done = getattr(type(self), f"do_{name}", None)
            if name not in self.status and done is not None:
                done(self, *arguments)
            return self.status.get(name, 0)

        return call

    def do_cuDevicePrimaryCtxRetain(self, context, device):
        self.retained += 1

    def do_cuCtxPushCurrent_v2(self, context):
        self.depth += 1

    def do_cuCtxPopCurrent_v2(self, context):
        self.depth -= 1

    def do_cuDeviceTotalMem_v2(self, total, device):
        total._obj.value = self.TOTAL

    def do_cuMemGetInfo_v2(self, free, total):
        assert self.depth == 1
        free._obj.value = self.TOTAL - sum(block.nbytes for block in self.blocks.values())
        total._obj.value = self.TOTAL

    def do_cuMemAlloc_v2(self, address, nbytes):
        assert self.depth == 1
        block = np.full(nbytes.value // 4 + 64, np.nan, np.float32)
        address._obj.value = block.ctypes.data + -block.ctypes.data % 256
        self.blocks[address._obj.value] = block

    def do_cuMemcpyHtoD_v2(self, address, source, nbytes):
        assert self.depth == 1
        ctypes.memmove(address.value, source.value, nbytes.value)

    def do_cuMemFree_v2(self, address):
        assert self.depth == 1
        self.freed.append(self.blocks.pop(address.value))
        self.freed[-1].fill(np.nan)

    def do_cuMemAllocHost_v2(self, address, nbytes):
        assert self.depth == 1
        block = np.full(nbytes.value, 0xFF, np.uint8)
        address._obj.value = block.ctypes.data
        self.pinned[block.ctypes.data] = block

    def do_cuMemFreeHost(self, address):
        assert self.depth == 1
        self.freed.append(self.pinned.pop(address.value))
        self.freed[-1].fill(0xFF)

    def do_cuMemcpyDtoH_v2(self, target, address, nbytes):
        assert self.depth == 1
        ctypes.memmove(target.value, address.value, nbytes.value)

    def do_cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, mode._obj.value = mode._obj.value, self.mode

    def do_cuDeviceGetName(self, name, length, device):
        name.value = b"Host"

    def do_cuDriverGetVersion(self, version):
        version._obj.value = 12080
