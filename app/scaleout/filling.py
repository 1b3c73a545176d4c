"""How the requests of a model are spread over its workers: evenly, or one worker filled before the next. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

#: `spread`: the worker with the fewest requests in flight. `fill`: the first, up to a quantum of them, then the next.
Fill = Literal["spread", "fill"]


def quantum(factor: float, max_batch: int | None) -> int:
    """How much one worker takes before the next is used: so many of its largest batches, at least 1 (ties to even)."""
    return 1 if max_batch is None else max(1, round(factor * max_batch))


@dataclass(frozen=True, slots=True)
class FillRules:
    """The default for every model, and what differs for some. Mode and factor are overridden separately."""

    mode: Fill = "spread"
    factor: float = 1.0
    modes: Mapping[str, Fill] = field(default_factory=lambda: MappingProxyType({}))
    factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, model: str, max_batch: int | None) -> int | None:
        """The quantum of a model; None where its requests are spread."""
        if self.modes.get(model, self.mode) == "spread":
            return None
        return quantum(self.factors.get(model, self.factor), max_batch)
