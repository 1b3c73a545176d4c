"""What is where: the weights of every model and the budget, at one instant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.config import Residency
from app.scheduling.residency import Budget


@dataclass(frozen=True, slots=True)
class ModelResidency:
    """One model at one instant: bytes and seconds."""

    model_id: str
    weight_bytes: int
    floor: Residency
    resident: bool
    provider: str
    """The execution provider that runs it; empty while it is not resident."""
    graphs: Mapping[str, Sequence[int]]
    """The batch sizes of each variant that replay a recorded CUDA graph once they are warm."""
    loads: int
    evicts: int
    load_seconds: float
    """Sum over its loads."""


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """What is where, and what the budget is; `arena` 0 where every model stays resident."""

    arena: int
    budget: Budget
    scratch_bytes: int
    pinned_bytes: int
    resident_bytes: int
    compactions: int
    demand_loads: int
    """Loads that requests waited for."""
    models: Mapping[str, ModelResidency]
    """By model id."""
