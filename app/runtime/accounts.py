"""How the requests of one model ended: counters that add up, read when scraped."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Upper bounds of the latency histogram, in seconds.
LATENCY_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: What the time of an answered request is made of, in this order.
STAGES = ("decode", "preprocess", "queue", "load", "compute", "postprocess", "encode")

#: Upper bounds of the histograms of stages, in seconds.
STAGE_BOUNDS = (0.00005, 0.0002, 0.001, 0.005, 0.02, 0.1, 0.5, 2.5)

#: `code` of an error → `reason` of `worker_drops_total`; every other code counts as failed. `expired_queue` covers
#: deadlines that passed anywhere: also in a hook, or while the request ran.
DROP_REASONS = {
    "deadline_exceeded": "expired_queue",
    "deadline_infeasible": "infeasible_admission",
    "infeasible_dispatch": "infeasible_dispatch",
    "queue_full": "queue_full",
    "cancelled": "cancelled",
    "shutdown": "shutdown",
}


@dataclass(slots=True)
class Account:
    """The requests of one model. Event loop only. accepted = ok + failed + dropped + in flight.

    A request that went to the fallback model is accepted there, and here only counted as `diverted`.
    """

    accepted: int = 0
    diverted: int = 0
    compute_seconds: float = 0.0
    """Of a meta model, which has no dispatches of its own: its part of the device time of its sub-calls."""
    ok: int = 0
    failed: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    latency_buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    latency_sum: float = 0.0
    ok_seconds: float = 0.0
    """Of the latencies those of answered requests."""
    answered_at: float | None = None
    """When the last of them was answered; monotonic seconds."""
    stage_buckets: list[list[int]] = field(default_factory=lambda: [[0] * (len(STAGE_BOUNDS) + 1) for _ in STAGES])
    stage_sums: list[float] = field(default_factory=lambda: [0.0] * len(STAGES))

    @property
    def dropped(self) -> int:
        """Requests that were given up: expired, infeasible, refused by a full queue, gone, shut down."""
        return self.drops.total()

    @property
    def in_flight(self) -> int:
        """Requests that are neither answered nor given up."""
        return self.accepted - self.ok - self.failed - self.dropped

    def close(self, code: str | None, seconds: float) -> None:
        """The request ended: `code` of its error, None for an answer, after `seconds`."""
        if code is None:
            self.ok += 1
            self.ok_seconds += seconds
        elif code in DROP_REASONS:
            self.drops[DROP_REASONS[code]] += 1
        else:
            self.failed += 1
        self.latency_buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.latency_sum += seconds

    def passed(self, stages: Sequence[float]) -> None:
        """The request was answered after so many seconds in each of `STAGES`; 0 for one that it did not have."""
        sums = self.stage_sums
        for index, seconds in enumerate(stages):
            if seconds:
                self.stage_buckets[index][bisect_left(STAGE_BOUNDS, seconds)] += 1
                sums[index] += seconds
