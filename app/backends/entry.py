"""What a compile-cache entry says of itself: `entry.json`, written last, read by every process that maps it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.domain.batch_safety import BatchProbe, Beside, Deviation

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "weights.bin"

#: The graph of a bound entry with all dims fixed, for each (variant, size) that is replayed.
GRAPH_FILES = "graph-*.onnx"

#: The forms in which weights are kept; see `CacheEntry.form`.
PREPACKED, BOUND, EXTERNAL, PLAIN = "prepacked", "bound", "external", "plain"


@dataclass(frozen=True)
class Layout:
    """The names by which a session fixes its dims.

    `batch_names` are the dims that carry the batch; `dims` gives, per variant, the extent of every dim it fixes.
    """

    batch_names: tuple[str, ...]
    dims: Mapping[str, Mapping[str, int]]

    def overrides(self, variant: str | None, size: int) -> dict[str, int]:
        """Dim name → extent for one session; a `variant` of None and a `size` of 0 leave their dims free."""
        fixed = {} if variant is None else dict(self.dims[variant])
        return fixed | dict.fromkeys(self.batch_names, size) if size else fixed


@dataclass(frozen=True)
class Weight:
    """An initializer that became an input of the graph, and where its elements are in the weights file, in bytes."""

    name: str
    onnx_type: int
    shape: tuple[int, ...]
    offset: int


#: The part of a plain execution's time that replaying must not exceed: it takes device memory, and has to be worth it.
MOST_TIME = 0.95


@dataclass(frozen=True)
class StoredGraph:
    """What came of recording (variant, size) as a CUDA graph in the compile child; a size of 0 where none is compiled.

    `reason` says why that cannot be done, empty where it was proved. `file` is the graph with all its dims fixed;
    `block_bytes` are those of its inputs and outputs, `device_bytes` what recording it takes of the device, and
    `seconds` and `plain_seconds` an execution replayed, and not.
    """

    variant: str
    size: int
    reason: str = ""
    file: str = ""
    block_bytes: int = 0
    device_bytes: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0

    @property
    def excuse(self) -> str:
        """Why it is not replayed; empty where it is."""
        if self.reason or self.seconds <= MOST_TIME * self.plain_seconds:
            return self.reason
        return f"it would take {self.seconds * 1e3:.3g} ms, and {self.plain_seconds * 1e3:.3g} ms without"


@dataclass(frozen=True)
class StoredRun:
    """What an execution of (variant, size) took in the compile child, once it was warm; size 1 where none is compiled.

    `quick` says that it is over before a second thread is awake.
    """

    variant: str
    size: int
    seconds: float
    quick: bool


@dataclass(frozen=True)
class StoredEntry:
    """The content of `entry.json` besides the digests.

    `optimised` is False where the graph is the bundle's own and each session has to optimise it. `runs` are what
    proving the form took. `batch_probe` is what rows of one batch were measured to do to one another; `scratch_bytes`
    the activation memory of the hungriest variant. `weights` are those that are bound at every run, of the form that
    has such. `graphs` is what came of recording CUDA graphs, where that was tried.
    """

    form: str
    optimised: bool
    weight_bytes: int
    layout: Layout
    reason: str = ""
    runs: tuple[StoredRun, ...] = ()
    batch_probe: BatchProbe = field(default_factory=BatchProbe)
    scratch_bytes: int = 0
    weights: tuple[Weight, ...] = ()
    graphs: tuple[StoredGraph, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether sessions can share the weights, so that every size may have a session of its own."""
        return self.form != PLAIN

    def is_quick(self, variant: str | None, size: int) -> bool:
        """Whether a second thread would gain nothing."""
        return any(run.quick and (run.variant, run.size) == (variant, size) for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "form": self.form,
            "optimised": self.optimised,
            "weight_bytes": self.weight_bytes,
            "batch_names": list(self.layout.batch_names),
            "dims": {variant: dict(dims) for variant, dims in self.layout.dims.items()},
            "reason": self.reason,
            "runs": [asdict(run) for run in self.runs],
            "batch_probe": asdict(self.batch_probe),
            "scratch_bytes": self.scratch_bytes,
            "weights": [asdict(weight) for weight in self.weights],
            "graphs": [asdict(graph) for graph in self.graphs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "StoredEntry":
        """Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for what `to_json` does not write."""
        return cls(
            form=data["form"],
            optimised=data["optimised"],
            weight_bytes=data["weight_bytes"],
            layout=Layout(tuple(data["batch_names"]), {key: dict(dims) for key, dims in data["dims"].items()}),
            reason=data["reason"],
            runs=tuple(StoredRun(**each) for each in data["runs"]),
            batch_probe=_probe_from_json(data["batch_probe"]),
            scratch_bytes=data["scratch_bytes"],
            weights=tuple(Weight(**{**each, "shape": tuple(each["shape"])}) for each in data["weights"]),
            graphs=tuple(StoredGraph(**each) for each in data["graphs"]),
        )


def _probe_from_json(data: Mapping[str, Any]) -> BatchProbe:
    deviations = (Deviation(**{**each, "beside": Beside(each["beside"])}) for each in data["deviations"])
    return BatchProbe(tuple(deviations), data["failure"], data["quantised"])
