"""What the scheduler answers: run this, these are too late, ask again then."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from app.scheduling.request import QueuedRequest
from app.scheduling.retries import RetryBudget

R = TypeVar("R", bound=QueuedRequest)


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch(Generic[R]):
    """One execution: `requests` (in order, `rows` rows in all) of one model at one compiled size.

    For a model without compiled sizes `size` equals `rows`: it runs at its exact row count. `waiting_since` is the
    instant since when nothing but the device kept it from running. `retry` belongs to the scheduler and is set on a
    part of a failed dispatch.
    """

    model_id: str
    variant: str
    size: int
    rows: int
    requests: tuple[R, ...]
    waiting_since: float
    retry: RetryBudget | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Decision(Generic[R]):
    """Run `dispatch` if there is one, answer the `expired`; without a dispatch ask again at `wake_at`.

    `expired` are those whose due instant passed in the queue, and those that the dispatch could only answer late.
    """

    dispatch: Dispatch[R] | None
    expired: tuple[R, ...]
    wake_at: float
