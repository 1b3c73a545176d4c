"""What a simulation comes to, per model and in all."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from load_tests.simulate.device import Device
from load_tests.simulate.models import SimulatedModel

#: What a timer takes out of a queue had expired in it.
_RENAMED = {"withdrawn": "expired_queue"}


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """One model. Counts are requests; `drops` by reason hold all that were not answered."""

    name: str
    weight: float
    arrived: int
    in_time: int
    late: int
    drops: Mapping[str, int]
    busy: float
    """Device seconds, loads that the device waited for included."""
    waited: float
    """Of those, the loads."""
    hits: int
    """Requests that found the weights on the device when they arrived."""
    loads: int
    wasted: int
    """Loads after which the weights left before the model had run."""
    longest_cold: float
    """Longest time, in seconds, that it had queued work without its weights being there."""
    dispatches: int
    rows: int
    padded_rows: int
    batch_sizes: Mapping[int, int]
    """Compiled size → executions."""
    latencies: Sequence[float] = field(repr=False)
    """Of those answered, in seconds, late ones included."""

    @property
    def attainment(self) -> float:
        """The part that was answered in time; 1 without requests."""
        return self.in_time / self.arrived if self.arrived else 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation: requests arrived for `seconds`, the device was done with them at `ended_at`."""

    seconds: float
    ended_at: float
    missed: int
    """Requests that were refused, dropped or answered late."""
    models: tuple[ModelOutcome, ...]

    @property
    def arrived(self) -> int:
        """All requests."""
        return sum(model.arrived for model in self.models)

    @property
    def in_time(self) -> int:
        """All answers in time."""
        return sum(model.in_time for model in self.models)

    @property
    def goodput(self) -> float:
        """Answers in time, per second of arrivals."""
        return self.in_time / self.seconds

    @property
    def attainment(self) -> float:
        """The part of all requests that was answered in time."""
        return self.in_time / self.arrived if self.arrived else 1.0

    @property
    def worst(self) -> float:
        """The attainment of the model that fared worst."""
        return min(model.attainment for model in self.models)

    @property
    def utilisation(self) -> float:
        """The part of the time that the device was busy."""
        return sum(model.busy for model in self.models) / max(self.ended_at, self.seconds)

    @property
    def waiting(self) -> float:
        """The part of the time that the device waited for weights."""
        return sum(model.waited for model in self.models) / max(self.ended_at, self.seconds)

    @property
    def hit_rate(self) -> float:
        """The part of the requests that found the weights on the device when they arrived."""
        return sum(model.hits for model in self.models) / max(self.arrived, 1)

    @property
    def loads(self) -> int:
        """All weight loads."""
        return sum(model.loads for model in self.models)

    @property
    def wasted(self) -> int:
        """Loads after which the weights left before the model had run."""
        return sum(model.wasted for model in self.models)

    @property
    def longest_cold(self) -> float:
        """Longest time, in seconds, that a model had queued work without its weights being there."""
        return max(model.longest_cold for model in self.models)

    @property
    def shares(self) -> list[float]:
        """Device time of each model over that of all."""
        total = sum(model.busy for model in self.models) or 1.0
        return [model.busy / total for model in self.models]

    @property
    def fairness(self) -> float:
        """Jain's index of device time per weight: 1 when all are equal, 1/n when one has everything."""
        return jain([model.busy / model.weight for model in self.models])

    @property
    def rows_per_batch(self) -> float:
        """Mean rows of an execution."""
        return sum(model.rows for model in self.models) / max(sum(model.dispatches for model in self.models), 1)

    @property
    def padding(self) -> float:
        """The part of all rows that were run that was padding."""
        padded = sum(model.padded_rows for model in self.models)
        return padded / max(padded + sum(model.rows for model in self.models), 1)

    @property
    def drops(self) -> Counter[str]:
        """Requests that were not answered, by reason."""
        return sum((Counter(model.drops) for model in self.models), Counter[str]())

    @property
    def batch_sizes(self) -> Counter[int]:
        """Executions by compiled size."""
        return sum((Counter(model.batch_sizes) for model in self.models), Counter[int]())

    @property
    def late(self) -> int:
        """Answers that came after the deadline."""
        return sum(model.late for model in self.models)

    def latency(self, q: float) -> float:
        """A quantile of the latency of what was answered, in seconds; 0 without answers."""
        every = np.concatenate([np.asarray(model.latencies) for model in self.models])
        return float(np.quantile(every, q)) if len(every) else 0.0


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Several simulations of one scenario as if they were one long one."""
    return Outcome(
        sum(each.seconds for each in outcomes),
        sum(max(each.ended_at, each.seconds) for each in outcomes),
        sum(each.missed for each in outcomes),
        tuple(_pooled(parts) for parts in zip(*[each.models for each in outcomes], strict=True)),
    )


def _pooled(parts: Sequence[ModelOutcome]) -> ModelOutcome:
    return ModelOutcome(
        parts[0].name,
        parts[0].weight,
        sum(part.arrived for part in parts),
        sum(part.in_time for part in parts),
        sum(part.late for part in parts),
        sum((Counter(part.drops) for part in parts), Counter[str]()),
        sum(part.busy for part in parts),
        sum(part.waited for part in parts),
        sum(part.hits for part in parts),
        sum(part.loads for part in parts),
        sum(part.wasted for part in parts),
        max(part.longest_cold for part in parts),
        sum(part.dispatches for part in parts),
        sum(part.rows for part in parts),
        sum(part.padded_rows for part in parts),
        sum((Counter(part.batch_sizes) for part in parts), Counter[int]()),
        [latency for part in parts for latency in part.latencies],
    )


def jain(values: Sequence[float]) -> float:
    """The square of the sum over n times the sum of squares; 1 where nothing is used."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def outcome(device: Device, models: Sequence[SimulatedModel], seconds: float) -> Outcome:
    """Read a device off."""
    stats = device.scheduler.stats(device.now).models
    found = []
    for model in models:
        tally, seen = device.tallies[model.name], stats[model.name]
        held = device.residency.memory.held[model.name]
        drops = Counter[str]()
        for reason, count in seen.drops.items():
            drops[_RENAMED.get(reason, reason)] += count
        found.append(
            ModelOutcome(
                model.name,
                model.weight,
                tally.arrived,
                tally.in_time,
                tally.late,
                +drops,
                tally.busy,
                tally.waited,
                tally.hits,
                held.loads,
                held.wasted,
                held.longest_cold,
                seen.dispatches,
                seen.rows,
                seen.padded_rows,
                seen.batch_sizes,
                tally.latencies,
            )
        )
    return Outcome(seconds, device.now, device.missed, tuple(found))
