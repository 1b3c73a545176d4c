"""What the scheduler counts per model, and the frozen snapshots that others read."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

DropReason = Literal["expired_queue", "infeasible_dispatch", "infeasible_admission", "queue_full", "withdrawn"]
DROP_REASONS: tuple[DropReason, ...] = (
    "expired_queue",
    "infeasible_dispatch",
    "infeasible_admission",
    "queue_full",
    "withdrawn",
)

#: Every so many dispatches of a model, the least recently measured size is used, so that no estimate freezes.
EXPLORE_EVERY = 64

#: Upper bounds, in seconds, of the histogram of dispatch gaps.
GAP_BOUNDS = (25e-6, 50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 2e-3, 5e-3, 0.02, 0.1, 1.0)


class GapHistogram:
    """Idle time of the device while work was queued, before each dispatch, in seconds."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(GAP_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count the gap before one dispatch."""
        self.buckets[bisect_left(GAP_BOUNDS, seconds)] += 1
        self.total += seconds


class WaitHistogram:
    """The queue waits of the latest requests, in seconds.

    Kept raw, since adding to it is on the hot path; ordering them is left to whoever reads a snapshot.
    """

    WINDOW: ClassVar = 512

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=self.WINDOW)

    def extend(self, waits: Iterable[float]) -> None:
        """Add the waits of one dispatch, stamped at its start."""
        self._waits.extend(waits)

    def snapshot(self) -> tuple[float, ...]:
        """The window, oldest first."""
        return tuple(self._waits)


class Counters:
    """What happened to one model since it was loaded; a reload goes on counting in the same object."""

    __slots__ = (
        "batch_rows", "batch_seconds", "batch_sizes", "compute_seconds", "dispatches", "drops", "explored_seconds",
        "gaps", "padded_rows", "requests", "rows", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.dispatches = 0
        self.requests = 0
        self.rows = 0
        self.padded_rows = 0
        self.compute_seconds = 0.0
        self.explored_seconds = 0.0
        """Part of the compute time in which other sizes were tried, if they were."""
        self.drops: dict[DropReason, int] = dict.fromkeys(DROP_REASONS, 0)
        self.batch_rows: dict[int, int] = {}
        self.batch_seconds: dict[int, float] = {}
        self.batch_sizes: dict[int, int] = {}
        self.waits = WaitHistogram()
        self.gaps = GapHistogram()

    @property
    def explores(self) -> bool:
        """Whether the next dispatch is one of those that may try another size."""
        return self.dispatches % EXPLORE_EVERY == EXPLORE_EVERY - 1

    def dispatched(self, requests: int, rows: int, size: int, seconds: float, *, exact: bool) -> None:
        """Count one dispatch that ran; `exact` where any row count is run, which is counted by size class."""
        if self.explores:
            self.explored_seconds += seconds
        self.dispatches += 1
        self.requests += requests
        self.rows += rows
        self.padded_rows += max(size - rows, 0)
        self.compute_seconds += seconds
        if exact:
            rows = size = size_class(rows)
        self.batch_rows[rows] = self.batch_rows.get(rows, 0) + 1
        self.batch_seconds[rows] = self.batch_seconds.get(rows, 0.0) + seconds
        self.batch_sizes[size] = self.batch_sizes.get(size, 0) + 1


class Usage(NamedTuple):
    """What one model has queued and used, at one instant; the shares are over the models in use."""

    queue_depth: int = 0
    recent_seconds: float = 0.0
    share_target: float = 0.0
    share_actual: float = 0.0


#: A model without queued requests that did nothing lately.
UNUSED = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStats:
    """One model at one instant. Seconds throughout; counters run since the model was first loaded."""

    model_id: str
    name: str
    weight: float
    max_batch_size: int | None
    """Most rows merged into one dispatch; None where every request runs alone at its own row count."""
    queue_depth: int
    dispatches: int
    requests: int
    rows: int
    padded_rows: int
    compute_seconds: float
    drops: Mapping[DropReason, int]
    """Requests that left the queue, or were refused at it, without being run."""
    recent_seconds: float
    """Exponentially decaying average of the device time used."""
    share_target: float
    """Weight over the weights of the models in use: those with queued requests or recent device time."""
    share_actual: float
    """Recent device time over that of all models."""
    costs: Mapping[tuple[str, int], float]
    """Learned seconds per (variant, compiled size)."""
    reserve_seconds: float
    """What is kept back from each deadline for what follows the queue."""
    batch_rows: Mapping[int, int]
    """Rows per dispatch → dispatches; without compiled sizes the rows are rounded up to a power of two."""
    batch_seconds: Mapping[int, float]
    """The same → their compute time."""
    batch_sizes: Mapping[int, int]
    """Compiled size → dispatches; likewise."""
    gap_buckets: tuple[int, ...]
    """Dispatches by the idle time of the device before them, one count per bound of `GAP_BOUNDS` and one beyond."""
    gap_seconds: float
    """Sum of those idle times."""
    waits: tuple[float, ...]
    """Queue waits of the latest requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Everything the scheduler knows, at one instant; `models` by model id."""

    discipline: str
    queue_depth: int
    share_wait_seconds_max: float
    """Longest time that a contender with a share of at least a tenth waited between two dispatches."""
    usage: Mapping[str, Usage]
    """By model id, of the models that are or were lately in use."""
    models: Mapping[str, ModelStats] = field(default_factory=dict)


def size_class(rows: int) -> int:
    """The power of two that stands for an exact row count, so that what is kept per size stays small."""
    return 1 << (rows - 1).bit_length()


def quantile(samples: Iterable[float], q: float) -> float:
    """The sample that at least a part `q` of them does not exceed; 0 without samples."""
    ordered = sorted(samples)
    if not ordered:
        return 0.0
    rank = -int(-q * len(ordered) // 1)  # ceiling
    return ordered[min(max(rank, 1), len(ordered)) - 1]
