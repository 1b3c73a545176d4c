"""Sessions whose weights are inputs: a few kB each, which live on while the weights come and go."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, SessionIOBinding

from app.backends.base import CacheEntry
from app.backends.entry import Weight
from app.backends.slab import Slab
from app.domain.errors import ExecutionFailed
from app.domain.model import ModelSpec

_HOST = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)

#: What is bound between runs in place of the inputs: their copies on the device are nobody's any more.
_NOTHING = np.empty(0, np.float32)


class BoundSession:
    """Has the two calls of a native session by which it is run, and gives it the weights that are attached."""

    def __init__(self, session: Any, weights: Sequence[Weight]) -> None:
        self._session = session
        self._weights = weights
        self._slab: Slab | None = None
        self._binding: Any = None

    def attach(self, slab: Slab) -> None:
        """From now on, until they are detached, the weights are in `slab`."""
        self._slab = slab

    def detach(self) -> None:
        """Forget where the weights are: they are about to be freed. What is bound has their addresses."""
        self._slab = self._binding = None

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any) -> list[Any]:
        """Arrays, or `OrtValue`s of Python, to arrays on the host. Raises whatever ONNX Runtime raises."""
        binding = self._execute(names, feeds, options)
        arrays = [value.numpy() for value in binding.get_outputs()]
        binding.clear_binding_outputs()  # each array holds what it needs
        return arrays

    def run_with_ort_values(self, feeds: Mapping[str, Any], names: Sequence[str], options: Any) -> list[Any]:
        """Native values to native values on the host, which are good until the next run: the binding owns them."""
        return list(self._execute(names, feeds, options).get_outputs())

    def _execute(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any) -> Any:
        binding = self._binding or self._bind()
        try:
            for name, value in feeds.items():
                if isinstance(value, np.ndarray):
                    binding.bind_input(name, value)
                else:
                    binding.bind_ortvalue_input(name, getattr(value, "_ortvalue", value))
            for name in names:
                binding.bind_output(name, _HOST)
            self._session.run_with_iobinding(binding, options)
        finally:
            for name in feeds:
                binding.bind_input(name, _NOTHING)
        return binding

    def _bind(self) -> Any:
        if self._slab is None:
            raise ExecutionFailed("the weights of the session are not on the device")
        binding = SessionIOBinding(self._session)
        for weight in self._weights:
            address = self._slab.address + weight.offset
            binding.bind_input(weight.name, self._slab.device, weight.onnx_type, weight.shape, address)
        self._binding = binding
        return binding


#: Models. On a device a session has workspaces of cuBLAS and cuDNN, tens of MB that no budget counts.
MOST_KEPT = 16


@dataclass(frozen=True)
class Sessions:
    """The sessions of a model by (variant, size), a size of 0 for any, and the provider that they got."""

    spec: ModelSpec
    provider: str
    by_shape: Mapping[tuple[str, int], Any]


class Shelf:
    """Sessions without weights, each from the eviction of a model to its next load, or to the end of its entry.

    Those of the latest `MOST_KEPT` models to be evicted are kept. An entry is known by its identity: as long as the
    model is known somebody has that very value.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[CacheEntry], Sessions]] = {}

    def put(self, entry: CacheEntry, sessions: Sessions) -> None:
        """Keep sessions for the next load (dispatcher thread)."""
        while len(self._kept) >= MOST_KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        key = id(entry)
        self._kept[key] = (weakref.ref(entry, lambda _: self._kept.pop(key, None)), sessions)

    def take(self, entry: CacheEntry, spec: ModelSpec) -> Sessions | None:
        """The sessions that were kept, for whoever asks first (any thread)."""
        _, sessions = self._kept.pop(id(entry), (None, None))
        return sessions if sessions is not None and sessions.spec == spec else None

    def clear(self) -> None:
        """Keep none (dispatcher thread)."""
        self._kept.clear()
