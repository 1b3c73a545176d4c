"""First come, first served, whatever the model."""

from collections.abc import Sequence

from app.domain.config import SchedulerConfig
from app.scheduling.disciplines.base import Candidate, Discipline


def select(candidates: Sequence[Candidate], config: SchedulerConfig) -> Candidate:
    """The model whose front request is the oldest; ties by name."""
    return min(candidates, key=lambda candidate: (candidate.oldest_enqueued_at, candidate.name))


FIFO = Discipline("fifo", select, ahead="everything")
