"""What the scheduler answers: run this, these are too late, ask again then."""

from typing import Final, Generic, TypeVar

from app.scheduling.request import QueuedRequest
from app.scheduling.retries import RetryBudget

R = TypeVar("R", bound=QueuedRequest)


class Dispatch(Generic[R]):
    """One execution: `requests` (in order, `rows` rows in all) of one model at one compiled size.

    For a model without compiled sizes `size` equals `rows`: it runs at its exact row count. `waiting_since` is the
    instant since when nothing but the device kept it from running. `retry` belongs to the scheduler and is set on a
    part of a failed dispatch. Nothing of it changes.
    """

    __slots__ = ("model_id", "requests", "retry", "rows", "size", "variant", "waiting_since")

    # By hand, and not as a frozen dataclass: those cannot be both generic and compiled.
    def __init__(
        self,
        model_id: str,
        variant: str,
        size: int,
        rows: int,
        requests: tuple[R, ...],
        waiting_since: float,
        retry: RetryBudget | None = None,
    ) -> None:
        self.model_id: Final = model_id
        self.variant: Final = variant
        self.size: Final = size
        self.rows: Final = rows
        self.requests: Final = requests
        self.waiting_since: Final = waiting_since
        self.retry: Final = retry


class Decision(Generic[R]):
    """Run `dispatch` if there is one, answer the `expired`; without a dispatch ask again at `wake_at`.

    `expired` are those whose due instant passed in the queue, and those that the dispatch could only answer late.
    """

    __slots__ = ("dispatch", "expired", "wake_at")

    def __init__(self, dispatch: Dispatch[R] | None, expired: tuple[R, ...], wake_at: float) -> None:
        self.dispatch: Final = dispatch
        self.expired: Final = expired
        self.wake_at: Final = wake_at
