"""When a queued request must go, may wait, or is beyond saving: pure rules over instants."""

from collections.abc import Sequence
from typing import Literal, TypeVar

from app.scheduling.request import QueuedRequest

R = TypeVar("R", bound=QueuedRequest)

Release = Literal["empty", "wait", "release", "reject:deadline"]


def release(
    queued: int,
    oldest_arrival: float,
    oldest_deadline: float,
    now: float,
    *,
    max_size: int,
    max_wait: float,
    reserve: float,
) -> Release:
    """Whether a queue of `queued` rows is dispatched now, on size or on age; any one unit of time.

    Raises `ValueError` for a size below 1 or a negative wait or reserve, unless the queue is empty.
    """
    if queued == 0:
        return "empty"
    if max_size < 1 or max_wait < 0 or reserve < 0:
        raise ValueError(f"max_size must be at least 1 ({max_size}), max_wait ({max_wait}) and reserve ({reserve}) ≥ 0")
    if now >= oldest_deadline - reserve:
        return "reject:deadline"
    # Compared as an instant, so that a sleeper that wakes at exactly this instant finds the queue released.
    if queued >= max_size or now >= oldest_arrival + max_wait:
        return "release"
    return "wait"


def safe_wait(max_wait: float, *, oldest_arrival: float, tightest_due: float, load: float, cost: float) -> float:
    """`max_wait`, shortened so that a batch released after it still ends by its tightest due instant; at least 0."""
    return max(min(max_wait, tightest_due - load - cost - oldest_arrival), 0.0)


def feasible(now: float, due: float, *, running: float, load: float, own: float, ahead: float = 0.0) -> bool:
    """Whether work that arrives now can still end before `due`.

    `running` is the rest of the execution in progress, `load` the expected weight load, `own` the request's own cost,
    `ahead` what will be run first; all in seconds, 0 where nothing is known.
    """
    return now + running + load + ahead + own < due


def shed(requests: Sequence[R], finish_at: float) -> tuple[list[R], list[R]]:
    """Split into (kept, dropped): those due after `finish_at` or committed, and those that would be late."""
    kept: list[R] = []
    dropped: list[R] = []
    for request in requests:
        (kept if request.committed or request.due > finish_at else dropped).append(request)
    return kept, dropped
