"""What a discipline is: a stateless choice among snapshots of the models that contend."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from app.domain.config import SchedulerConfig

#: No contender of at least this share starves: see `fair`, and what statistics report.
GUARDED_SHARE = 0.1


class Candidate(NamedTuple):
    """A model that could run now. Times are seconds; `share` and `recent_share` are over the contending models only."""

    model_id: str
    name: str
    share: float
    recent_share: float
    cost: float
    """Expected time on the device of the planned dispatch, weight load included."""
    merges: bool
    """Whether the planned dispatch serves two or more requests."""
    oldest_enqueued_at: float
    soonest_due: float
    waited: float
    """How long it has contended since it was last served."""


Select = Callable[[Sequence[Candidate], SchedulerConfig], Candidate]


class Discipline(NamedTuple):
    """A way to choose the next model."""

    name: str
    select: Select
    ahead: Literal["everything", "sooner", "share"]
    """What is expected to run before a new request: all queued work, that of models with a sooner due instant, or its
    own queue while the others take their share."""
    by_deadline: bool = False
    """Whether deadlines decide, so that refusals may foresee the order."""
