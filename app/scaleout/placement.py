"""Which worker serves which model: the heaviest first, each to the worker that is least loaded with it. Pure.

Loads are compared as exact fractions: equal ones compare equal, whatever was added and taken away before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

#: How many workers serve a model.
Replicas = int | Literal["all"]

#: Loads are whole numbers of these parts of a device.
PARTS = 10**9


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model asks of its workers together: device seconds per second; bytes of weights, of each of them."""

    load: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """How many workers a model gets, and what moves one.

    A model leaves its worker only where another would be less loaded by more than the part `hysteresis`, and a demand
    that changed by less than that part counts as unchanged. With `oversubscribe` a worker may be given more weights
    than it has room for, where that balances better; without, only when no other has room.
    """

    default_replicas: Replicas = 1
    replicas: Mapping[str, Replicas] = field(default_factory=lambda: MappingProxyType({}))
    hysteresis: float = 0.1
    oversubscribe: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Model → its workers, in the order of the fleet; the demands it was made for; what it loads each worker with.

    `drifted` are models that some workers lack: they stay wherever they are.
    """

    homes: Mapping[str, tuple[str, ...]]
    demands: Mapping[str, Demand] = field(default_factory=lambda: MappingProxyType({}))
    loads: Mapping[str, Fraction] = field(default_factory=lambda: MappingProxyType({}))
    nbytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    drifted: tuple[str, ...] = ()

    def weights(self, model: str) -> dict[str, Fraction]:
        """Which part of the model's requests each of its workers gets."""
        homes = self.homes[model]
        return {worker: Fraction(1, len(homes)) for worker in homes}


class _Fleet:
    """The workers while they are being filled."""

    def __init__(self, budgets: Mapping[str, int], rules: Rules, previous: Placement) -> None:
        self._budgets = budgets
        self._rules = rules
        self._previous = previous
        self._slack = 1 + exact(rules.hysteresis)
        self._rank = {worker: rank for rank, worker in enumerate(budgets)}
        self.loads = dict.fromkeys(budgets, Fraction(0))
        self.nbytes = dict.fromkeys(budgets, 0)

    def put(self, workers: Sequence[str], demand: Demand) -> tuple[str, ...]:
        """Charge a model to its workers: a share of the compute and all of the weights each."""
        for worker in workers:
            self.loads[worker] += exact(demand.load) / len(workers)
            self.nbytes[worker] += demand.nbytes
        return tuple(sorted(workers, key=self._rank.__getitem__))

    def choose(self, model: str, demand: Demand) -> tuple[str, ...]:
        """The workers that a model gets next."""
        count = replica_count(self._rules.replicas.get(model, self._rules.default_replicas), len(self._budgets))
        scores = {worker: self._score(worker, demand, count) for worker in self._budgets}
        before = [worker for worker in self._previous.homes.get(model, ()) if worker in self._budgets]
        ranked = sorted(
            self._budgets,
            key=lambda worker: (
                not self._may_hold(worker, demand),
                scores[worker],
                worker not in before,
                self.nbytes[worker],
                self._rank[worker],
            ),
        )
        if count == 1 and len(before) == 1:
            [home], best = before, ranked[0]
            tolerated = self._may_hold(home, demand) or not self._may_hold(best, demand)
            if tolerated and scores[home] <= scores[best] * self._slack:
                return (home,)
        return tuple(ranked[:count])

    def _score(self, worker: str, demand: Demand, count: int) -> Fraction:
        """How full the worker would be: of compute or of weights, whichever is more."""
        compute, budget = self.loads[worker] + exact(demand.load) / count, self._budgets[worker]
        return max(compute, Fraction(self.nbytes[worker] + demand.nbytes, budget)) if budget > 0 else compute

    def _may_hold(self, worker: str, demand: Demand) -> bool:
        budget = self._budgets[worker]
        return self._rules.oversubscribe or budget <= 0 or self.nbytes[worker] + demand.nbytes <= budget


def place(
    demands: Mapping[str, Demand],
    budgets: Mapping[str, int],
    rules: Rules,
    previous: Placement | None = None,
    holders: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Placement:
    """Give every model its workers.

    `budgets` are the bytes of weights that each ready worker has room for, 0 for no bound; `holders` tells which
    workers have a model, where not all do.
    """
    previous = previous or Placement({})
    steady = {model: _steadied(previous.demands.get(model), demand, rules) for model, demand in demands.items()}
    fleet, homes = _Fleet(budgets, rules, previous), {}
    drifted = sorted(model for model, workers in holders.items() if model in demands and set(workers) < set(budgets))
    for model in drifted:
        there = [worker for worker in budgets if worker in holders[model]]
        if there:
            homes[model] = fleet.put(there, steady[model])
    for model in sorted(steady.keys() - set(drifted), key=lambda name: _heaviest_first(name, steady[name])):
        homes[model] = fleet.put(fleet.choose(model, steady[model]), steady[model])
    return Placement(homes, steady, fleet.loads, fleet.nbytes, tuple(drifted))


def replica_count(wanted: Replicas, workers: int) -> int:
    """How many of so many workers serve a model."""
    return workers if wanted == "all" else max(1, min(wanted, workers))


def overfull(placement: Placement, budgets: Mapping[str, int]) -> dict[str, int]:
    """Workers that were given more bytes of weights than they have room for, with the bytes."""
    return {worker: nbytes for worker, nbytes in placement.nbytes.items() if 0 < budgets.get(worker, 0) < nbytes}


def changed_workers(before: Placement | None, after: Placement) -> tuple[str, ...]:
    """Workers that serve another set of models than before."""
    old = {} if before is None else before.homes
    moved = {
        worker
        for model in old.keys() | after.homes.keys()
        for worker in set(old.get(model, ())) ^ set(after.homes.get(model, ()))
    }
    return tuple(sorted(moved))


def exact(value: float) -> Fraction:
    """A measured number without the residue of floating point."""
    return Fraction(round(value * PARTS), PARTS)


def _heaviest_first(model: str, demand: Demand) -> tuple[Fraction, int, str]:
    return -exact(demand.load), -demand.nbytes, model


def _steadied(before: Demand | None, now: Demand, rules: Rules) -> Demand:
    """The demand to place for: as before, unless it really changed. Noise would otherwise reorder the models."""
    if before is None or abs(exact(now.load) - exact(before.load)) > exact(rules.hysteresis) * exact(before.load):
        return now
    return Demand(before.load, now.nbytes)
