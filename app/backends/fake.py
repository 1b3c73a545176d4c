"""A backend without a device, for tests and load tests of the scheduler: deterministic and scriptable.

A hook is called at every step and fails the step by raising. What an execution computes is simple enough to be checked
row by row: see `compute`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.backends.base import CacheEntry, DeviceMemory
from app.backends.digests import digest_file
from app.backends.entry import StoredGraph
from app.domain.batch_safety import BatchProbe
from app.domain.errors import ExecutionFailed
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors, TensorSpec

OnRun = Callable[[str, int, Tensors], None]


@dataclass(frozen=True)
class Call:
    """One execution that was asked for: `rows` is the batch extent of the inputs, 1 where there is none."""

    model: str
    variant: str
    size: int
    rows: int


class FakeBackend:
    """Keeps a record of what it is asked.

    `on_compile(model_file, spec)`, `on_prepare(entry, spec)` and `on_run(variant, size, inputs)` are called first thing
    in each step; a test blocks in one to hold the step, or raises to fail it. `failures` are raised by the next runs in
    turn (None lets one succeed). `cost(variant, size)` says how many seconds a run takes and `spend(seconds)` makes
    them pass, on whatever clock. `weights` gives weight bytes by model name, `probes` what compiling measures of the
    rows of a batch, by model name too; by default nothing. `costs`, `warm_costs`, `scratch` and `graphs` are what
    an entry says of costs, here and in the compile child, of activation memory and CUDA graphs; `remembered` and `warm`
    what the backend was asked to keep.
    """

    def __init__(
        self,
        *,
        on_compile: Callable[[Path, ModelSpec], None] | None = None,
        on_prepare: Callable[[CacheEntry, ModelSpec], None] | None = None,
        on_run: OnRun | None = None,
        on_terminate: Callable[[], None] | None = None,
        cost: Callable[[str, int], float] | None = None,
        spend: Callable[[float], None] | None = None,
        weights: Mapping[str, int] | None = None,
        probes: Mapping[str, BatchProbe] | None = None,
        limit: int = 0,
    ) -> None:
        self.on_compile = on_compile
        self.on_prepare = on_prepare
        self.on_run = on_run
        self.on_terminate = on_terminate
        self.cost = cost
        self.spend = spend
        self.weights: dict[str, int] = dict(weights or {})
        self.probes: dict[str, BatchProbe] = dict(probes or {})
        self.limit = limit
        self.failures: deque[Exception | None] = deque()
        self.calls: list[Call] = []
        self.compiled: list[str] = []
        self.costs: dict[str, dict[tuple[str, int], float]] = {}
        self.warm_costs: dict[str, dict[tuple[str, int], float]] = {}
        self.remembered: dict[str, dict[tuple[str, int], float]] = {}
        self.scratch: dict[str, int] = {}
        self.graphs: dict[str, tuple[StoredGraph, ...]] = {}
        self.warm: set[str] = set()
        self.shrinks = 0
        self.loaded: list[FakeModel] = []
        self.closed = False

    name = "fake"

    def fail_next(self, *failures: Exception | None) -> None:
        """Let the next runs raise these, in turn; None lets one succeed."""
        self.failures.extend(failures)

    def digest(self, file: Path) -> str:
        """SHA-256 of a file, in hex."""
        return digest_file(file)

    def compile(self, model_file: Path, spec: ModelSpec, sample: Tensors | None = None) -> CacheEntry:
        """An entry that stands for the model; nothing is read, and nothing tried."""
        if self.on_compile is not None:
            self.on_compile(model_file, spec)
        self.compiled.append(spec.name)
        weight_bytes, probe = self.weights.get(spec.name, 1000), self.probes.get(spec.name, BatchProbe())
        return CacheEntry(
            model_file.parent,
            "plain",
            weight_bytes,
            "a fake shares nothing",
            probe,
            self.scratch.get(spec.name, 0),
            self.costs.get(spec.name, {}),
            graphs=self.graphs.get(spec.name, ()),
            warm=self.warm_costs.get(spec.name, {}),
        )

    def prepare(self, entry: CacheEntry, spec: ModelSpec) -> "FakePrepared":
        """A model that is ready to be taken over."""
        if self.on_prepare is not None:
            self.on_prepare(entry, spec)
        return FakePrepared(FakeModel(self, spec, entry.weight_bytes))

    def remember(self, entry: CacheEntry, costs: Mapping[tuple[str, int], float], load_seconds: float) -> None:
        """Keep what was measured, by the name of the bundle's directory."""
        self.remembered[entry.path.name] = dict(costs)

    def keep_warm(self, entry: CacheEntry) -> None:
        """Remember that it was asked."""
        self.warm.add(entry.path.name)

    def let_go(self, entry: CacheEntry) -> None:
        """Remember that it was asked."""
        self.warm.discard(entry.path.name)

    def shrink(self) -> None:
        """Remember that it was asked."""
        self.shrinks += 1

    def arena_bytes(self) -> int:
        """The limit that was given."""
        return self.limit

    def memory(self) -> DeviceMemory:
        """The weights of the loaded models, and the limit that was given."""
        return DeviceMemory(sum(model.weight_bytes for model in self.loaded), self.limit)

    def close(self) -> None:
        """Remember that it was called."""
        self.closed = True


class FakePrepared:
    """A fake model on its way."""

    def __init__(self, model: "FakeModel") -> None:
        self._model = model

    def load(self) -> "FakeModel":
        """Take the model over."""
        self._model.backend.loaded.append(self._model)
        return self._model


class FakeModel:
    """A fake model on the fake device."""

    provider = "FakeExecutionProvider"

    def __init__(self, backend: FakeBackend, spec: ModelSpec, weight_bytes: int) -> None:
        self.backend = backend
        self.spec = spec
        self.unloaded = False
        self._weight_bytes = weight_bytes
        self._terminated = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights."""
        return self._weight_bytes

    def run(self, variant: str, size: int, inputs: Tensors) -> Tensors:
        """Record the call, fail as scripted, else `compute`. Raises `ExecutionFailed` for shapes not compiled."""
        backend = self.backend
        rows = self.spec.rows_of(inputs)
        backend.calls.append(Call(self.spec.name, variant, size, rows))
        self._terminated = False
        if self.unloaded:
            raise ExecutionFailed(f"{self.spec.name} is not loaded")
        if backend.on_run is not None:
            backend.on_run(variant, size, inputs)
        if backend.cost is not None and backend.spend is not None:
            backend.spend(backend.cost(variant, size))
        if self._terminated:
            raise ExecutionFailed("the execution was ended before it was done", reason="terminated")
        if backend.failures and (failure := backend.failures.popleft()) is not None:
            raise failure
        self._check(variant, size, rows)
        return compute(self.spec, inputs)

    def terminate(self) -> None:
        """Let the running execution fail once its hook returns."""
        self._terminated = True
        if self.backend.on_terminate is not None:
            self.backend.on_terminate()

    def unload(self) -> None:
        """Forget the weights. Idempotent."""
        self.unloaded = True
        if self in self.backend.loaded:
            self.backend.loaded.remove(self)

    def _check(self, variant: str, size: int, rows: int) -> None:
        sizes = self.spec.sizes(variant)
        if sizes and (size not in sizes or rows != size):
            raise ExecutionFailed(f"{rows} rows at size {size} of {self.spec.name}, which is compiled for {sizes}")


def compute(spec: ModelSpec, inputs: Tensors) -> Tensors:
    """What a fake model answers: every element of row r of an output is the sum of row r over all inputs.

    An output with the datatype, rank and fixed extents of the first input is that input instead. Without a batch axis
    there is one row. Variable extents of sums are 1. Numbers in BYTES outputs are text; BYTES inputs count as their
    length.
    """
    first = spec.inputs[0]
    with np.errstate(all="ignore"):  # a device computes whatever it is given
        return {
            output.name: inputs[first.name].copy() if _alike(first, output) else _sums(spec, output, inputs)
            for output in spec.outputs
        }


def _alike(left: TensorSpec, right: TensorSpec) -> bool:
    return (left.datatype, left.shape, left.batch_axis) == (right.datatype, right.shape, right.batch_axis)


def _sums(spec: ModelSpec, output: TensorSpec, inputs: Tensors) -> Array:
    rows = spec.rows_of(inputs)
    sums = np.zeros(rows)
    for tensor in spec.inputs:
        sums += _row_sums(inputs[tensor.name], tensor.batch_axis)
    extents = [1 if extent == -1 else extent for extent in output.shape]
    if output.batch_axis is None:
        values, axis = np.array([sums.sum()]), None
    else:
        values, axis, extents[output.batch_axis] = sums, output.batch_axis, rows
    shape = [1] * len(extents)
    if axis is not None:
        shape[axis] = rows
    if output.datatype == "BYTES":
        texts = np.array([str(float(value)).encode() for value in values], np.object_)
        return np.broadcast_to(texts.reshape(shape), extents).copy()
    return np.broadcast_to(values.reshape(shape), extents).astype(output.dtype)


def _row_sums(array: Array, axis: int | None) -> Array:
    numbers = _lengths(array) if array.dtype.hasobject else array.astype(np.float64)
    if axis is None:
        return np.asarray(numbers.sum())
    other = tuple(index for index in range(array.ndim) if index != axis)
    result: Array = numbers.sum(axis=other)
    return result


def _lengths(array: Array) -> Array:
    return np.array([len(element) for element in array.ravel()], np.float64).reshape(array.shape)
