"""A simulated model: its true cost per compiled size, its deadline, its part of the traffic."""

from dataclasses import dataclass
from math import inf

from app.domain.model import DEFAULT_SIZES, MergeKey, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.scheduling.request import QueuedRequest

#: All simulated models have one variant.
VARIANT = "default"

#: Requests of one model may always share an execution.
KEY = MergeKey(VARIANT)

_X = (TensorSpec("x", "FP32", (-1, 1), 0),)
_Y = (TensorSpec("y", "FP32", (-1, 1), 0),)


@dataclass(frozen=True)
class SimulatedModel:
    """One execution at compiled size b takes `fixed_ms + row_ms * b`; every request has one row."""

    name: str
    fixed_ms: float
    row_ms: float
    deadline_ms: float = inf
    """Counted from arrival; infinite for none."""
    share: float = 1.0
    """Of the requests, relative to the other models of the scenario."""
    weight: float = 1.0
    sizes: tuple[int, ...] = DEFAULT_SIZES
    load_ms: float = 0.0
    """What it takes to bring the weights to the device, where they are not resident."""
    nbytes: int = 1
    """Of the weights, in the unit of the scenario's `room`."""

    def seconds(self, size: int) -> float:
        """True seconds of one execution at a compiled size."""
        return (self.fixed_ms + self.row_ms * size) / 1e3

    def spec(self) -> ModelSpec:
        """The model as the scheduler knows it."""
        return ModelSpec(self.name, _X, _Y, (Variant(VARIANT, self.sizes, {}),), _X, _Y)

    def request(self, now: float) -> QueuedRequest:
        """One request that arrives now."""
        deadline = now + self.deadline_ms / 1e3
        return QueuedRequest(model_id=self.name, merge_key=KEY, rows=1, enqueued_at=now, deadline=deadline)
