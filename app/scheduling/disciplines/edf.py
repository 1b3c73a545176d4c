"""Earliest deadline first, over models: queues are never reordered."""

from collections.abc import Sequence

from app.domain.config import SchedulerConfig
from app.scheduling.disciplines.base import Candidate, Discipline


def select(candidates: Sequence[Candidate], config: SchedulerConfig) -> Candidate:
    """The model with the most urgent queued request; ties by oldest front request, then name."""
    return min(candidates, key=lambda candidate: (candidate.soonest_due, candidate.oldest_enqueued_at, candidate.name))


EDF = Discipline("edf", select, ahead="sooner", by_deadline=True)
