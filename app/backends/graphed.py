"""Sessions that replay a CUDA graph once they are warm, and what all those graphs may take of the device.

Dispatcher thread, but for `GraphMemory.loading`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from app.backends.block import Block, open_block
from app.backends.bound import BoundSession
from app.backends.cuda import cuda_driver
from app.backends.entry import StoredEntry, StoredGraph
from app.backends.proof import compare
from app.backends.recording import Recording, fits, fixed_shapes
from app.backends.sessions import SessionConfig, translate
from app.backends.slab import Slab
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors

_log = logging.getLogger(__name__)

#: Executions of a (variant, size) since its load before one is recorded, at the next.
WARM_RUNS = 2

#: Part of the device that graphs may take. No weights ever get it, so a graph takes nobody's place.
PART_OF_DEVICE = 1 / 16


class GraphMemory:
    """The bytes of a device that graphs have, of those that they may have."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._taken = 0
        self._loads: set[object] = set()
        self.limit = int(config.device_bytes * PART_OF_DEVICE) if config.graphs else 0
        """0 where there is no bound, as for the device itself."""

    def take(self, nbytes: int) -> bool:
        """Whether a graph may be recorded now: while a model is loaded none is, since that allocates and copies."""
        if self._loads or self._taken + nbytes > (self.limit or inf):
            return False
        self._taken += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """A graph that had so many bytes is no more."""
        self._taken -= nbytes

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a model is loaded, by whatever thread: a graph that another is recording stays whole."""
        load = object()
        self._loads.add(load)
        try:
            if self._config.graphs and self._config.provider.needs_libraries:
                with cuda_driver(self._config.ordinal).beside_captures():
                    yield
            else:
                yield
        finally:
            self._loads.discard(load)


class Bench:
    """What the graphs of one model have in common: one block for the inputs and outputs of whichever is replayed."""

    def __init__(
        self, path: Path, entry: StoredEntry, spec: ModelSpec, config: SessionConfig, memory: GraphMemory
    ) -> None:
        self.spec = spec
        self._path = path
        self._entry = entry
        self._config = config
        self._memory = memory
        self._block: Block | None = None
        self._users: set[StoredGraph] = set()

    def has_room(self, graph: StoredGraph) -> bool:
        """Whether a graph may be recorded now; then it has its memory, until it is cleared away."""
        if not self._memory.take(graph.device_bytes):
            return False
        self._users.add(graph)
        return True

    def open(self, graph: StoredGraph, slab: Slab, shapes: Mapping[str, tuple[int, ...]]) -> Recording:
        """A recording with nothing recorded yet. Raises whatever ONNX Runtime and the driver raise."""
        recording = Recording(self._path / graph.file, self._entry, self.spec, self._config, shapes)
        if self._block is None:
            self._block = open_block(max([each.block_bytes for each in self._entry.graphs]), self._config)
        recording.bind(slab, self._block)
        return recording

    def clear(self, graph: StoredGraph) -> None:
        """A graph is destroyed, or was never recorded; harmless when it has nothing."""
        if graph in self._users:
            self._users.remove(graph)
            self._memory.give_back(graph.device_bytes)
        if not self._users and self._block is not None:
            self._block.close()
            self._block = None


class GraphedSession:
    """One (variant, size): has the call of a native session by which it is run, and the weights that are attached.

    It executes plainly until it is warm, records the next execution, compares the answers, and replays from then on.
    Where that fails it goes on plainly, and tries no more until the weights are attached again.
    """

    def __init__(self, plain: BoundSession, graph: StoredGraph, bench: Bench) -> None:
        self._plain = plain
        self._graph = graph
        self._bench = bench
        self._shapes = fixed_shapes(bench.spec, graph.variant, graph.size)
        self._slab: Slab | None = None
        self._recording: Recording | None = None
        self._runs = 0
        self._failed = False

    @property
    def replays(self) -> bool:
        """Whether the next execution is a replay."""
        return self._recording is not None

    def attach(self, slab: Slab) -> None:
        """From now on, until they are detached, the weights are in `slab`."""
        self.forget()
        self._failed = False
        self._plain.attach(slab)
        self._slab = slab

    def detach(self) -> None:
        """Destroy the graph and forget where the weights are: they are about to be freed."""
        self.forget()
        self._plain.detach()
        self._slab = None

    def forget(self) -> None:
        """Destroy the graph, which is recorded again when executions have been plain often enough."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        self._bench.clear(self._graph)
        self._runs = 0

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any) -> list[Any]:
        """Arrays to arrays on the host, in the order of `names`. Raises whatever ONNX Runtime raises."""
        if self._recording is not None and fits(feeds, self._shapes):
            try:
                outputs = self._recording.replay(feeds)
                return [outputs[name] for name in names]
            except Exception as error:
                self._give_up(error)
        arrays = self._plain.run(names, feeds, options)
        if self._recording is None and not self._failed:
            self._warm(feeds, dict(zip(names, arrays, strict=True)))
        return arrays

    def _warm(self, feeds: Tensors, expected: Tensors) -> None:
        """Count an execution; after enough of them, record it: `expected` is what comes of it."""
        self._runs += 1
        if self._runs <= WARM_RUNS or not fits(feeds, self._shapes) or not self._bench.has_room(self._graph):
            return
        assert self._slab is not None
        try:
            self._recording = self._bench.open(self._graph, self._slab, self._shapes)
            compare(self._bench.spec, expected, self._recording.record(feeds), "replayed")
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.forget()
        self._failed = True
        _log.warning(
            "model %s: the CUDA graph of variant %r at batch size %d failed and is not used until the next load: %s",
            self._bench.spec.name,
            self._graph.variant,
            self._graph.size or 1,
            translate(error).message,
        )


def with_graphs(
    sessions: Mapping[tuple[str, int], Any],
    path: Path,
    entry: StoredEntry,
    spec: ModelSpec,
    config: SessionConfig,
    memory: GraphMemory,
) -> Mapping[tuple[str, int], Any]:
    """The sessions of a model by (variant, size), those that have a graph with it; the others as they are."""
    if not config.graphs:
        return sessions
    bench = Bench(path, entry, spec, config, memory)
    graphs = {(graph.variant, graph.size): graph for graph in entry.graphs if not graph.excuse}
    return {
        shape: GraphedSession(session, graphs[shape], bench) if shape in graphs else session
        for shape, session in sessions.items()
    }  # fmt: skip
