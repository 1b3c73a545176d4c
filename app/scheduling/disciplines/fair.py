"""Device time by weight: the model furthest below its share, per second that serving it costs."""

from collections.abc import Sequence

from app.domain.config import SchedulerConfig
from app.scheduling.disciplines.base import GUARDED_SHARE, Candidate, Discipline

#: Contenders of a guarded share are served at least once in `LONGEST_WAIT` seconds, or twice their fair period
#: where their own dispatches are so long that fairness itself lets them wait.
LONGEST_WAIT = 1.0
FAIR_PERIODS = 2.0

#: Bound below the seconds that are divided by: a dispatch too short to be measured is not free.
LEAST_COST = 1e-6


def priority(candidate: Candidate, config: SchedulerConfig) -> float:
    """Distance below the share, clamped, per second of effective cost."""
    cap = config.recency_penalty_cap
    distance = max(-cap, min(cap, candidate.share - candidate.recent_share))
    discount = 1.0 - config.coalescing_discount if candidate.merges else 1.0
    return distance / max(candidate.cost * discount, LEAST_COST)


def select(candidates: Sequence[Candidate], config: SchedulerConfig) -> Candidate:
    """The model of highest priority; ties by oldest front request, then name. One that starves goes first.

    Averages forget slowly: whenever the set of contenders or a weight changes, the model that used the device most
    could be locked out until the others have caught up with it.
    """
    starving = [candidate for candidate in candidates if candidate.waited >= LONGEST_WAIT and _starves(candidate)]
    if starving:
        return max(starving, key=lambda candidate: candidate.waited)
    return min(candidates, key=lambda c: (-priority(c, config), c.oldest_enqueued_at, c.name))


def _starves(candidate: Candidate) -> bool:
    share = candidate.share
    return share >= GUARDED_SHARE and candidate.waited >= FAIR_PERIODS * candidate.cost / share


FAIR = Discipline("fair", select, ahead="share")
