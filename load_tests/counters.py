"""What the server counted for one model, read from `/status` before and after a run."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from app.scheduling.stats import GAP_BOUNDS
from load_tests.processes import Server


@dataclass(frozen=True)
class Counted:
    """Executions of one model: how many, of how many requests and rows, in how many device seconds."""

    dispatches: int
    requests: int
    rows: int
    compute_seconds: float
    batch_rows: Counter[int]
    batch_sizes: Counter[int]
    gaps: Counter[int]
    """Executions by the place in `GAP_BOUNDS` of the device's idle time before them, while work waited."""

    def __sub__(self, before: "Counted") -> "Counted":
        """What came between two readings."""
        return Counted(
            self.dispatches - before.dispatches,
            self.requests - before.requests,
            self.rows - before.rows,
            self.compute_seconds - before.compute_seconds,
            self.batch_rows - before.batch_rows,
            self.batch_sizes - before.batch_sizes,
            self.gaps - before.gaps,
        )

    @property
    def median_gap(self) -> float:
        """Seconds, evenly spread within the bucket in which the median is; NaN without executions, inf beyond all."""
        half, passed = self.gaps.total() / 2, 0
        for place, (low, high) in enumerate(pairwise((0.0, *GAP_BOUNDS, float("inf")))):
            here = self.gaps[place]
            if here and passed + here >= half:
                return low + (high - low) * (half - passed) / here
            passed += here
        return float("nan")


def counted(server: Server, name: str) -> Counted:
    """The counters of a model now. Raises `RuntimeError` while it does not serve."""
    for model in server.models():
        if model["name"] == name and model["serving"] is not None:
            serving = model["serving"]
            rows, sizes = (
                Counter({int(key): times for key, times in serving[name].items()})
                for name in ("batch_rows", "batch_sizes")
            )
            gaps = Counter(dict(enumerate(serving["gap_buckets"])))
            return Counted(
                serving["dispatches"],
                serving["requests"],
                serving["rows"],
                serving["compute_seconds"],
                rows,
                sizes,
                gaps,
            )
    raise RuntimeError(f"model {name!r} does not serve")
