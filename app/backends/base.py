"""What a device must offer. How the sessions of one model share their weights is each backend's own affair."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from app.backends.entry import StoredGraph
from app.domain.batch_safety import BatchProbe
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of device memory: `in_use` by this process, `limit` of what it may use (0: no limit known)."""

    in_use: int
    limit: int


@dataclass(frozen=True)
class CacheEntry:
    """A compiled bundle in the compile cache: a directory that is complete, verified and never written again.

    `form` says how the weights are kept: `prepacked` (mapped, packed for this CPU), `bound` (outside the sessions, one
    block for all of them), `external` (mapped, unpacked) or `plain` (inside each session); `reason` says why it is not
    the best one of its device, empty otherwise. `batch_probe` is what the
    rows of one batch were measured to do to one another. `scratch_bytes` is the activation memory of its hungriest
    (variant, size). `graphs` says which (variant, size) are replayed as CUDA graphs once they are warm, and why the
    others are not. `costs` (seconds by variant and size) and `load_seconds` were measured here before; empty and 0
    where they were not. `warm` (likewise) is what executions took in the compile child, at its leisure and on its
    threads; empty for forms that are not tried there.
    """

    path: Path
    form: str
    weight_bytes: int
    reason: str = ""
    batch_probe: BatchProbe = field(default_factory=BatchProbe)
    scratch_bytes: int = 0
    costs: Mapping[tuple[str, int], float] = field(default_factory=dict)
    load_seconds: float = 0.0
    graphs: tuple[StoredGraph, ...] = ()
    warm: Mapping[tuple[str, int], float] = field(default_factory=dict, compare=False)
    made: bool = field(default=False, compare=False)
    """Whether it was made when it was asked for, and not found."""
    lease: object = field(default=None, compare=False, repr=False)
    """Keeps the entry from being removed, for as long as somebody has this value."""

    @property
    def replayed(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes of each variant that are replayed as CUDA graphs."""
        used = [graph for graph in self.graphs if not graph.excuse]
        return {each.variant: tuple(g.size or 1 for g in used if g.variant == each.variant) for each in used}


class LoadedModel(Protocol):
    """A model on the device."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, shared by all compiled sizes."""

    @property
    def provider(self) -> str:
        """The execution provider that really runs the model."""

    def run(self, variant: str, size: int, inputs: Tensors) -> Tensors:
        """Execute once, on the dispatcher thread. `size` rows in, `size` rows out.

        Inputs are complete, C-contiguous, and exactly of the compiled shape; a model without compiled sizes takes
        `size` as its exact row count. Raises `ExecutionFailed` or `OutOfMemory`.
        """

    def terminate(self) -> None:
        """Ask the running execution to end; callable from any thread; harmless when none runs."""

    def unload(self) -> None:
        """Free the device memory, on the dispatcher thread. Idempotent."""


class Prepared(Protocol):
    """A model that is compiled and mapped, ready to be taken over."""

    def load(self) -> LoadedModel:
        """Take the model over, on the dispatcher thread; short."""


class Backend(Protocol):
    """One device."""

    @property
    def name(self) -> str:
        """`cpu` or `cuda`."""

    def digest(self, file: Path) -> str:
        """SHA-256 of a file, in hex (loader thread); of a large file that was not touched since, without reading it.

        Raises `OSError`.
        """

    def compile(self, model_file: Path, spec: ModelSpec, sample: Tensors | None = None) -> CacheEntry:
        """Bring the bundle's graph into the compile cache (loader thread; the work is done in a child process).

        `sample`, where there is one, has valid executable inputs of one row count: what runs is then tried with real
        values. Returns at once when the entry is there. Raises `BundleError` naming the file when the graph cannot be
        run, or was replaced meanwhile.
        """

    def prepare(self, entry: CacheEntry, spec: ModelSpec) -> Prepared:
        """Build the sessions over one copy of the weights (loader thread)."""

    def remember(self, entry: CacheEntry, costs: Mapping[tuple[str, int], float], load_seconds: float) -> None:
        """Keep what was measured, for the next start on this machine (loader thread)."""

    def keep_warm(self, entry: CacheEntry) -> None:
        """Ask the system to have the entry's weights in host memory; returns at once."""

    def let_go(self, entry: CacheEntry) -> None:
        """Let the system forget the entry's weights, which nothing here uses; returns at once."""

    def shrink(self) -> None:
        """Give the device memory back that executions took and do not need between them (dispatcher thread)."""

    def arena_bytes(self) -> int:
        """Device memory for weights and activations together; 0 for no bound, so that everything stays resident."""

    def memory(self) -> DeviceMemory:
        """What is in use and what the limit is; any thread."""

    def close(self) -> None:
        """End what `compile` may be waiting for, which then raises `BundleError`; any thread. Idempotent."""
