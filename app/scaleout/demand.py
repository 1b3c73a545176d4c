"""What is asked of each model, learned from what the workers count; and when that is reason to place models anew. Pure.

Averages and triggers run on the compute clock: they move by what the fleet has computed, not by what a wall clock says,
so that an idle night forgets nothing and a busy minute is not waited out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Counts(NamedTuple):
    """What one worker has counted for one model since it was loaded: requests, answers, device seconds."""

    arrivals: int
    answered: int
    compute: float


class Window(NamedTuple):
    """What the fleet counted between two looks."""

    arrivals: int = 0
    answered: int = 0
    compute: float = 0.0


class Meter:
    """Turns the counters of workers, which begin anew when a worker does, into what happened between two looks."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Counts] = {}

    def read(self, counts: Mapping[tuple[str, str], Counts]) -> dict[str, Window]:
        """By model, given the counters by (worker, model). A counter that fell adds nothing, nor does a first look."""
        found: dict[str, Window] = {}
        for (worker, model), now in counts.items():
            before = self._seen.get((worker, model), now)
            self._seen[worker, model] = now
            sofar = found.get(model, Window())
            found[model] = Window(
                sofar.arrivals + max(now.arrivals - before.arrivals, 0),
                sofar.answered + max(now.answered - before.answered, 0),
                sofar.compute + max(now.compute - before.compute, 0.0),
            )
        return found


@dataclass(slots=True)
class _Average:
    value: float = 0.0
    seeded: bool = False

    def add(self, sample: float, alpha: float) -> None:
        self.value = self.value + alpha * (sample - self.value) if self.seeded else sample
        self.seeded = True


class DemandBook:
    """Device seconds per second that each model asks for: arrivals per second × seconds per request, both averaged.

    `halflife` are the seconds of fleet compute after which half of an average is new.
    """

    def __init__(self, halflife: float) -> None:
        self.halflife = halflife
        self._rates: dict[str, _Average] = {}
        self._costs: dict[str, _Average] = {}

    def fold(self, windows: Mapping[str, Window], seconds: float) -> None:
        """Take in what happened in so many seconds of the wall clock; 0 at the start, when no rate is known."""
        compute = sum(window.compute for window in windows.values())
        alpha = 1.0 - 0.5 ** (compute / self.halflife)
        for model, window in windows.items():
            if window.answered > 0:
                self._costs.setdefault(model, _Average()).add(window.compute / window.answered, alpha)
            if seconds > 0:
                self._rates.setdefault(model, _Average()).add(window.arrivals / seconds, alpha)

    def load(self, model: str) -> float:
        """What the model asks for; 0 while nothing is known."""
        unknown = _Average()
        return self._rates.get(model, unknown).value * self._costs.get(model, unknown).value

    def forget(self, known: Iterable[str]) -> None:
        """Keep only these models."""
        keep = set(known)
        for book in (self._rates, self._costs):
            for model in book.keys() - keep:
                del book[model]


class RepackTrigger:
    """Says when the fleet has computed enough since the last time for the placement to be looked at again.

    The first time less is enough, since the start knows nothing of the traffic. What operators ask for does not count.
    """

    def __init__(self, first: float, then: float) -> None:
        self._budget = first
        self.then = then
        self._spent = 0.0

    def spend(self, compute: float) -> bool:
        """Add what was computed; whether it is time."""
        self._spent += max(compute, 0.0)
        if self._spent < self._budget:
            return False
        self._spent, self._budget = 0.0, self.then
        return True


class CompactionPace:
    """Says after which repacks the workers whose models changed are compacted: those that moved something, and no more
    often than every `interval`th repack."""

    def __init__(self) -> None:
        self._repacks = 0

    def due(self, mode: Literal["off", "eager", "scheduled"], interval: int, *, moved: bool) -> bool:
        """Count a repack; whether it is time."""
        if mode == "off":
            return False
        self._repacks += 1
        if not moved or self._repacks < interval:
            return False
        self._repacks = 0
        return True


def models_to_reload(mode: Literal["off", "eager", "scheduled"], models: Iterable[str]) -> list[str]:
    """What a compacted worker loads again at once: its models, or under `eager` none, until they are asked for."""
    return sorted(models) if mode == "scheduled" else []
