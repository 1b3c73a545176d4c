"""Recording a bound entry as CUDA graphs where only the compile child can be lost, and proving each by its answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
from onnx import ModelProto

from app.backends.block import Block, open_block
from app.backends.entry import MODEL_FILE, WEIGHTS_FILE, StoredEntry, StoredGraph
from app.backends.execution import Run, open_run
from app.backends.graph import read_graph
from app.backends.probes import probes
from app.backends.proof import NotProvedError, compare
from app.backends.recording import Recording, fixed_shapes, write_fixed
from app.backends.scratch import in_use
from app.backends.sessions import SessionConfig, session_key, translate
from app.backends.slab import Slab, open_slab
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors

#: Different inputs that a graph must have answered as the plain session does.
LEAST_INPUTS = 3

_MOST_INPUTS = 24

#: Executions that are timed, replayed and not; the fastest was disturbed least.
_TIMED_RUNS = 10


@dataclass
class _Attempt:
    """One (variant, size) on its way: `asked` and `expected` are inputs and the plain session's answers to them."""

    variant: str
    size: int
    file: Path
    asked: list[Tensors] = field(default_factory=list)
    expected: list[Tensors] = field(default_factory=list)
    recording: Recording | None = None
    device_bytes: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)
    reason: str = ""

    def found(self) -> StoredGraph:
        """What goes into the entry."""
        if self.reason or self.recording is None:
            return StoredGraph(self.variant, self.size, self.reason)
        return StoredGraph(
            self.variant,
            self.size,
            file=self.file.name,
            block_bytes=self.recording.block_bytes,
            device_bytes=max(self.device_bytes, self.recording.block_bytes),
            seconds=self.seconds[0],
            plain_seconds=self.seconds[1],
        )


class GraphTrial:
    """All (variant, size) of an entry, recorded one after the other and, as in the server, kept together.

    `spoilt` says that one failed while or after it was recorded: whatever that left behind, the process must end.
    """

    def __init__(
        self, path: Path, entry: StoredEntry, spec: ModelSpec, sample: Tensors | None, config: SessionConfig
    ) -> None:
        self.spoilt = False
        self._path = path
        self._entry = entry
        self._spec = spec
        self._sample = sample
        self._config = config
        self._plain: dict[tuple[str | None, int], Run] = {}
        shapes = [(variant.key, size) for variant in spec.variants for size in spec.sizes(variant.key) or (0,)]
        self._attempts = [_Attempt(*shape, path / f"graph-{number}.onnx") for number, shape in enumerate(shapes)]

    def run(self) -> tuple[StoredGraph, ...]:
        """Try them all; what is proved has its file beside the entry's."""
        if not self._attempts:
            return ()
        slab = open_slab(self._path / WEIGHTS_FILE, self._config)
        model = read_graph(self._path / MODEL_FILE)
        self._each(lambda attempt: self._prepare(attempt, model, slab))
        room = max([each.recording.block_bytes for each in self._attempts if each.recording is not None], default=0)
        if room:
            block = open_block(room, self._config)
            self._each(lambda attempt: _bind(attempt, slab, block), recording=True)
            self._each(self._record, recording=True)
            self._each(self._replay, recording=True)  # now that the others have been
            for each in self._attempts:
                if each.recording is not None:
                    each.recording.close()
            block.close()
        for each in self._attempts:
            if each.reason:
                each.file.unlink(missing_ok=True)
        return tuple(each.found() for each in self._attempts)

    def _each(self, step: Callable[[_Attempt], None], *, recording: bool = False) -> None:
        """Take a step with every attempt that has not failed yet."""
        for attempt in self._attempts:
            if attempt.reason:
                continue
            try:
                step(attempt)
            except Exception as error:  # whatever ONNX Runtime and the driver raise
                known = translate(error)
                attempt.reason = known.message
                self.spoilt = self.spoilt or recording or known.code == "device_lost"

    def _prepare(self, attempt: _Attempt, model: ModelProto, slab: Slab) -> None:
        variant, size = attempt.variant, attempt.size
        shapes = fixed_shapes(self._spec, variant, size)
        key = session_key(self._entry, self._config, variant, size)
        if key not in self._plain:
            self._plain[key] = open_run(self._path, self._entry, self._spec, self._config, variant, size, slab)
        for inputs, expected in self._answered(variant, size, self._plain[key]):
            attempt.asked.append(inputs)
            attempt.expected.append(expected)
        if len(attempt.asked) < LEAST_INPUTS:
            raise NotProvedError(f"no {LEAST_INPUTS} different inputs are known to try it with")
        write_fixed(model, self._entry, self._config, variant, size, attempt.file)
        attempt.recording = Recording(attempt.file, self._entry, self._spec, self._config, shapes)

    def _answered(self, variant: str, size: int, run: Run) -> Iterator[tuple[Tensors, Tensors]]:
        """Inputs that differ, and the answers to those that the plain session takes."""
        tried: list[Tensors] = []
        found = list(probes(self._spec, self._spec.variants_by_key[variant], size or 1, self._sample))
        for inputs in islice(_variations(found), _MOST_INPUTS):
            if any(_same(inputs, each) for each in tried):
                continue
            tried.append(inputs)
            try:
                yield inputs, run(inputs)
            except Exception:  # a probe that the model does not take
                continue

    def _record(self, attempt: _Attempt) -> None:
        recording, key = attempt.recording, session_key(self._entry, self._config, attempt.variant, attempt.size)
        assert recording is not None
        before = in_use(self._config)
        recording.record(attempt.asked[0])
        attempt.device_bytes = max(in_use(self._config) - before, 0)
        self._replay(attempt)
        inputs = attempt.asked[0]
        attempt.seconds = _fastest(lambda: recording.replay(inputs), lambda: self._plain[key](inputs))

    def _replay(self, attempt: _Attempt) -> None:
        """Every input, with an execution of the plain session between, which leaves its own in the shared arena."""
        recording, key = attempt.recording, session_key(self._entry, self._config, attempt.variant, attempt.size)
        assert recording is not None
        for inputs, expected in zip(attempt.asked, attempt.expected, strict=True):
            compare(self._spec, expected, recording.replay(inputs), "replayed")
            self._plain[key](attempt.asked[0])


def _bind(attempt: _Attempt, slab: Slab, block: Block) -> None:
    assert attempt.recording is not None
    attempt.recording.bind(slab, block)


def _variations(found: Sequence[Tensors]) -> Iterator[Tensors]:
    """Probes, with their values elsewhere, and with those of one input alone elsewhere."""
    yield from found
    turned = [{name: _turned(array) for name, array in each.items()} for each in found]
    yield from turned
    for name, array in turned[0].items():
        yield {**found[0], name: array}


def _turned(array: Array) -> Array:
    """The same values in other places, so that they are as valid; floats also halved, since there may be just one."""
    result: Array = array.ravel()[::-1].reshape(array.shape).copy()
    return result / result.dtype.type(2) if result.dtype.kind == "f" else result


def _same(left: Tensors, right: Tensors) -> bool:
    return all(np.array_equal(array, right[name]) for name, array in left.items())


def _fastest(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Seconds of either, in turns: what else goes on here disturbs both."""
    taken = []
    for _ in range(_TIMED_RUNS):
        begun = perf_counter()
        first()
        middle = perf_counter()
        second()
        taken.append((middle - begun, perf_counter() - middle))
    return min(seconds for seconds, _ in taken), min(seconds for _, seconds in taken)
