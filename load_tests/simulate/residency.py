"""Where weights are: what a policy of residency must do to take part in a simulation."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from load_tests.simulate.models import SimulatedModel


class Residency(Protocol):
    """Decides loads and evictions and tells the scheduler: `set_weights`. `Scheduler.wanted` says what is missing."""

    def turn(self, now: float) -> float:
        """Before each decision: start background loads and finish those that are done; when to be asked again."""

    def acquire(self, model_id: str, now: float) -> bool:
        """Before a model runs: make room for it; whether the device must wait for its weights first."""


#: (scheduler, all models) → the policy of one simulation.
MakeResidency = Callable[[Scheduler[QueuedRequest], Sequence[SimulatedModel]], Residency]


class AllResident:
    """A device that holds everything."""

    def __init__(self, scheduler: Scheduler[QueuedRequest], models: Sequence[SimulatedModel]) -> None:
        pass

    def turn(self, now: float) -> float:
        """Nothing to do, ever."""
        return inf

    def acquire(self, model_id: str, now: float) -> bool:
        """Everything is there."""
        return False
