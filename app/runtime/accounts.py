"""How the requests of one model ended: counters that add up, read when scraped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

import numpy as np
from numpy.typing import NDArray

#: Upper bounds of the latency histogram, in seconds.
LATENCY_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: What the time of an answered request is made of, in this order.
STAGES = ("decode", "preprocess", "queue", "load", "compute", "postprocess", "encode")

#: Upper bounds of the histograms of stages, in seconds.
STAGE_BOUNDS = (0.00005, 0.0002, 0.001, 0.005, 0.02, 0.1, 0.5, 2.5)

#: When a request was received, the time that it allowed, the time that it took, and its stages, in seconds: packed, as
#: one object. Ten thousand requests are remembered, and floats of their own, scattered by then, were cold when their
#: turn came to be freed: that cost 1.2 µs a request.
TIMES = Struct(f"={3 + len(STAGES)}d")

_NO_STAGES = (0.0,) * len(STAGES)

#: So many requests are put into the histograms together, which takes a fifth of the time.
FOLDED_TOGETHER = 512

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
    ok_seconds: float = 0.0
    """Of the latencies those of answered requests."""
    answered_at: float | None = None
    """When the last of them was answered; monotonic seconds."""
    _latest: list[bytes] = field(default_factory=list)
    """`TIMES` of the requests that are not in the histograms yet: that is done for many at a time."""
    _latency: "Histogram" = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    _stages: tuple["Histogram", ...] = field(default_factory=lambda: tuple([Histogram(STAGE_BOUNDS) for _ in STAGES]))

    @property
    def dropped(self) -> int:
        """Requests that were given up: expired, infeasible, refused by a full queue, gone, shut down."""
        return self.drops.total()

    @property
    def in_flight(self) -> int:
        """Requests that are neither answered nor given up."""
        return self.accepted - self.ok - self.failed - self.dropped

    @property
    def latency(self) -> "Histogram":
        """Of all requests that ended, in seconds."""
        self._fold()
        return self._latency

    @property
    def stages(self) -> tuple["Histogram", ...]:
        """Of answered requests, by stage, in seconds; those count that had the stage."""
        self._fold()
        return self._stages

    def close(self, code: str | None, seconds: float, times: bytes | None = None) -> None:
        """The request ended after `seconds`: `code` of its error, None for an answer.

        `times` are the packed `TIMES` of an answer; without them it counts as one that had no stages.
        """
        if code is None:
            self.ok += 1
            self.ok_seconds += seconds
        elif code in DROP_REASONS:
            self.drops[DROP_REASONS[code]] += 1
        else:
            self.failed += 1
        self._latest.append(times or TIMES.pack(0.0, 0.0, seconds, *_NO_STAGES))
        if len(self._latest) >= FOLDED_TOGETHER:
            self._fold()

    def _fold(self) -> None:
        if self._latest:
            _, _, latency, *stages = np.frombuffer(b"".join(self._latest)).reshape(len(self._latest), -1).T
            self._latest.clear()
            self._latency.add(latency)
            for histogram, seconds in zip(self._stages, stages, strict=True):
                histogram.add(seconds[seconds > 0])


class Histogram:
    """Counts by upper bound, one more beyond the last, and the sum."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values; one that equals a bound is below it."""
        if values.size:
            counts = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.buckets))
            self.buckets = [known + new for known, new in zip(self.buckets, counts.tolist(), strict=True)]
            self.total += float(values.sum())
