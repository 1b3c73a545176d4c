"""Models of who gets a request: what HAProxy does, and what it could be told to do, in exact numbers.

HAProxy counts requests; these count *items* (rows), as a router could that reads the request. With one item a request,
`spread` is `balance leastconn`, `inflight` is `balance first` with `maxconn` at the quantum, and `RoundRobin` and
`BoundedHash` are what their names say. `run` is what it has no word for.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, Protocol

from app.scaleout.placement import exact

Mode = Literal["run", "inflight", "spread"]
Basis = Literal["compute", "items", "requests"]


class Router(Protocol):
    """Chooses a worker for each request, and is told when it was answered."""

    def choose(self, model: str, items: int) -> str:
        """The worker; the request counts as in flight there."""

    def done(self, worker: str, model: str, items: int) -> None:
        """It was answered."""


class RoundRobin:
    """Each worker in turn."""

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = list(workers)
        self._next = 0

    def choose(self, model: str, items: int) -> str:
        """The next one."""
        worker = self._workers[self._next]
        self._next = (self._next + 1) % len(self._workers)
        return worker

    def done(self, worker: str, model: str, items: int) -> None:
        """Nothing is counted."""


class LeastOutstanding:
    """The worker with the fewest requests in flight, in turn where several have."""

    def __init__(self, workers: Sequence[str]) -> None:
        self._turn = RoundRobin(workers)
        self._open = dict.fromkeys(workers, 0)

    def choose(self, model: str, items: int) -> str:
        """The least, beginning after the last."""
        first = self._turn.choose(model, items)
        order = list(self._open)
        at = order.index(first)
        worker = min(order[at:] + order[:at], key=self._open.__getitem__)
        self._open[worker] += 1
        return worker

    def done(self, worker: str, model: str, items: int) -> None:
        """One less."""
        self._open[worker] -= 1


class BoundedHash:
    """Each model at home on one worker, and where that has more than `factor` × the mean in flight, on the next."""

    def __init__(self, workers: Sequence[str], factor: float = 1.25) -> None:
        self._open = dict.fromkeys(workers, 0)
        self._factor = factor

    def choose(self, model: str, items: int) -> str:
        """The first of the model's own order that is not above the bound."""
        order = sorted(self._open, key=lambda worker: zlib.crc32(f"{model} {worker}".encode()))
        bound = self._factor * (sum(self._open.values()) + 1) / len(order)
        worker = next((each for each in order if self._open[each] + 1 <= max(bound, 1.0)), order[0])
        self._open[worker] += 1
        return worker

    def done(self, worker: str, model: str, items: int) -> None:
        """One less."""
        self._open[worker] -= 1


@dataclass(slots=True)
class _Run:
    """What goes to one replica before another has its turn."""

    worker: str | None = None
    spent: int = 0
    open: bool = False


@dataclass
class Placed:
    """Each model on its workers: `homes`. `quanta` in items; `costs` in seconds per item, or per request where that is
    the basis.

    A run ends when its quantum is spent, or when nothing of the model is in flight at its worker. `least` begins the
    next at the worker that is least backed up with the work of all models; otherwise workers take turns.
    """

    workers: Sequence[str]
    homes: Mapping[str, Sequence[str]]
    quanta: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    mode: Mode = "spread"
    basis: Basis = "compute"
    least: bool = False
    backed: dict[str, Fraction] = field(default_factory=dict)
    held: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backed = dict.fromkeys(self.workers, Fraction(0))
        self._runs: dict[str, _Run] = {}
        self._strangers = RoundRobin(self.workers)

    def place(self, homes: Mapping[str, Sequence[str]]) -> None:
        """Other homes from now on: what is in flight still counts, and runs begin anew."""
        self.homes = homes
        for run in self._runs.values():
            run.open = False

    def choose(self, model: str, items: int) -> str:
        """The worker; one that is in nobody's placement goes to each in turn."""
        homes = self.homes.get(model, ())
        worker = self._chosen(model, items, homes) if homes else self._strangers.choose(model, items)
        self.held[model, worker] = self.held.get((model, worker), 0) + items
        self.backed[worker] += self._work(model, items)
        return worker

    def done(self, worker: str, model: str, items: int) -> None:
        """Takes back exactly what was charged."""
        self.held[model, worker] -= items
        self.backed[worker] -= self._work(model, items)

    def failover(self, model: str, chosen: str) -> list[str]:
        """In which order workers are tried: the chosen, its fellows from the least backed up on, then all others."""
        homes = self.homes.get(model, ())
        fellows = sorted((each for each in homes if each != chosen), key=self.backed.__getitem__)
        return [chosen, *fellows, *[each for each in self.workers if each not in homes and each != chosen]]

    def _chosen(self, model: str, items: int, homes: Sequence[str]) -> str:
        run = self._runs.setdefault(model, _Run())
        held = {worker: self.held.get((model, worker), 0) for worker in homes}
        quantum = self.quanta.get(model, 1)
        if self.mode == "inflight":
            return next((worker for worker in homes if held[worker] < quantum), min(homes, key=held.__getitem__))
        goes_on = self.mode == "run" and run.open and run.spent < quantum and held.get(run.worker or "", 0) > 0
        if not goes_on:
            run.worker, run.spent, run.open = self._next(run.worker, held, quantum), 0, True
        run.spent += items
        assert run.worker is not None
        return run.worker

    def _next(self, last: str | None, held: Mapping[str, int], quantum: int) -> str:
        """Beginning after the last: whoever has least, or for a run, whoever has room."""
        order = list(held)
        at = order.index(last) + 1 if last is not None and last in held else 0
        order = order[at:] + order[:at]
        if self.mode == "spread":
            return min(order, key=lambda worker: (held[worker], self.backed[worker] if self.least else 0))
        with_room: Collection[str] = [worker for worker in order if held[worker] < quantum]
        if self.least or not with_room:
            return min(with_room or order, key=self.backed.__getitem__)
        return next(iter(with_room))

    def _work(self, model: str, items: int) -> Fraction:
        """What a request backs a worker up by. A model whose cost nobody knows has the mean of the others."""
        if self.basis == "items":
            return Fraction(items)
        known = self.costs.values()
        mean = sum([exact(each) for each in known], Fraction(0)) / len(known) if known else Fraction(1)
        cost = exact(self.costs[model]) if model in self.costs else mean
        return cost if self.basis == "requests" else cost * items
