"""How many replicas are wanted, from what the workers' `/status` says. Pure; Ray Serve's controller runs it."""

from collections.abc import Mapping
from math import ceil
from typing import Any

#: A replica that would be busy for more than this part of the time is not taken away.
_BUSIEST = 0.8


class ByQueueDepth:
    """An autoscaling policy: more replicas where requests queue, fewer where those that stay can carry the work.

    `target` is the number of queued requests that each replica may have. Bounds and delays are Serve's.
    """

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """`context` is a `ray.serve.config.AutoscalingContext`; the number of replicas, and no state."""
        told: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        current = context.target_num_replicas
        if not (depths := told.get("queue_depth")):
            return current, {}
        return self.wanted(current, sum(depths.values()), sum(told.get("busy", {}).values())), {}

    def wanted(self, current: int, queued: float, busy: float) -> int:
        """`queued` requests and `busy` devices, both of all replicas together."""
        carrying = min(current, ceil(busy / _BUSIEST))
        return max(1, ceil(queued / self._target), carrying)


class BusyMeter:
    """The part of the time for which a device was busy since the last look."""

    def __init__(self, now: float) -> None:
        self._at, self._seconds = now, 0.0

    def look(self, now: float, busy_seconds: float) -> float:
        """Between 0 and 1, from the device's running total of seconds."""
        passed, done = now - self._at, busy_seconds - self._seconds
        self._at, self._seconds = now, busy_seconds
        return min(1.0, max(0.0, done / passed)) if passed > 0 else 0.0
