"""Running a failed dispatch again in halves, until the request that made it fail stands alone."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from app.scheduling.request import QueuedRequest

R = TypeVar("R", bound=QueuedRequest)

#: A failed dispatch may cost this many times its learned cost again, to find the request that made it fail.
RETRY_FACTOR = 4.0

RETRY_SECONDS = 0.05  # at the least: what a failing run of a quick model costs is mostly the failing


class RetryBudget:
    """Seconds that all parts of one failed dispatch together may still use."""

    __slots__ = ("left",)

    def __init__(self, cost: float) -> None:
        self.left = max(RETRY_FACTOR * cost, RETRY_SECONDS)


class Retry(NamedTuple, Generic[R]):
    """A part of a failed dispatch, to be run again on its own."""

    requests: tuple[R, ...]
    budget: RetryBudget


def halves(requests: Sequence[R], budget: RetryBudget) -> list[Retry[R]]:
    """The requests of a failed dispatch, at least one, as the one or two parts to be run instead."""
    middle = (len(requests) + 1) // 2
    return [Retry(tuple(part), budget) for part in (requests[:middle], requests[middle:]) if part]
