"""Which weights come to the device and which leave it: pure plans over snapshots, in bytes and monotonic seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import NamedTuple

#: A model stays at least this many times its load time, so that what was loaded can work before it goes.
STAY_FACTOR = 2.0

#: One that has nothing to do goes earlier if no other will do: so much of its load time after its last work, or as many
#: seconds as clients that wait for answers may take to ask again.
IDLE_FACTOR = 0.25
ASKS_AGAIN = 0.02

#: A model that was kept waiting for longer comes before those that would gain more: from then on at most one load of
#: each other model comes before its own. Seconds.
LONGEST_COLD = 10.0

#: What a load is taken to last at least: one that nobody measured is soon tried.
LEAST_LOAD = 1e-3


class Budget(NamedTuple):
    """How much memory weights may fill."""

    ceiling: int
    """All that weights and activations may fill together."""
    pool: int
    """All that weights may fill."""
    on_demand: int
    """What is left of the pool for models that come and go."""


def budget(arena: int, *, fraction: float, wiggle: float, scratch: int, pinned: int) -> Budget:
    """The weight budget of a device of `arena` bytes.

    `scratch` is the worst activation memory of any one model, `pinned` the weights that never leave. Fractions are
    taken as the decimal numbers they are written as: 0.9 of 1000 is 900.
    """
    ceiling = int((1 - Decimal(str(wiggle))) * arena)
    pool = max(min(int(Decimal(str(fraction)) * arena), ceiling - scratch), 0)
    return Budget(ceiling, pool, min(max(pool - pinned, 0), pool))


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on the device that may leave it."""

    model_id: str
    nbytes: int
    used_at: float
    """When it was loaded or last ended a dispatch."""
    loaded_at: float = -inf
    load_seconds: float = 0.0
    worked: bool = True
    """Whether it was dispatched since it was loaded."""
    queued: bool = False
    """Whether it has queued work."""

    def settled_at(self) -> float:
        """From when on it may leave for another: infinite while it has work and has not done any of it."""
        return inf if self.queued and not self.worked else self.loaded_at + STAY_FACTOR * self.load_seconds

    def leaves_at(self) -> float:
        """From when on it may leave if it must."""
        settled = self.settled_at()
        if self.queued or not self.worked:
            return settled
        return min(settled, self.used_at + max(IDLE_FACTOR * self.load_seconds, ASKS_AGAIN))


def plan_eviction(residents: Iterable[Resident], needed: int, free: int) -> tuple[str, ...] | None:
    """The least recently used models whose leaving makes `needed` bytes free, no more of them than that takes.

    None when all of them together are not enough.
    """
    chosen: list[Resident] = []
    room = free
    for each in sorted(residents, key=lambda each: (each.used_at, each.model_id)):
        if room >= needed:
            break
        chosen.append(each)
        room += each.nbytes
    if room < needed:
        return None
    for each in reversed(chosen):  # a large one taken late may have made smaller ones unnecessary
        if room - each.nbytes >= needed:
            chosen.remove(each)
            room -= each.nbytes
    return tuple(each.model_id for each in chosen)


class Wanted(NamedTuple):
    """A model with queued work whose weights are elsewhere."""

    model_id: str
    rows: int
    """All that it has queued."""
    unserved_since: float
    """When it was last served, if that left work, or else when the first request since then came; drops are no
    service."""
    load_seconds: float
    """0 while unknown."""
    committed: bool = False
    """Whether committed work is queued."""

    def gain(self, now: float) -> float:
        """What a load is worth: queued rows, times how long the model was not served, per second of loading.

        By rows alone a model that is asked for rarely would never come, by time alone as often as any other.
        """
        return self.rows * (now - self.unserved_since) / max(self.load_seconds, LEAST_LOAD)


def load_order(wanted: Iterable[Wanted], now: float) -> tuple[str, ...]:
    """Which weights to bring first: for committed work; else for whoever waits too long; else where they gain most."""

    def key(each: Wanted) -> tuple[bool, float, float, str]:
        overdue = now - each.unserved_since > LONGEST_COLD
        return not each.committed, each.unserved_since if overdue else now, -each.gain(now), each.model_id

    return tuple(each.model_id for each in sorted(wanted, key=key))


class LoadPlan(NamedTuple):
    """Load the model after evicting the victims; or, where `victims` is None, look again at `look_again_at`."""

    victims: tuple[str, ...] | None
    look_again_at: float = inf


def plan_load(
    needed: int,
    residents: Sequence[Resident],
    on_demand: int,
    now: float,
    *,
    taken: int = 0,
) -> LoadPlan:
    """Who leaves so that a model of `needed` bytes can come.

    Idle models go first, those that came of late after the others; then those with queued work; none before it has
    stayed as long as it must, and none runs while this is asked; `taken` bytes belong to others that stay. A model
    larger than the budget comes when everything else has left.
    """
    leaving = [each for each in residents if each.leaves_at() <= now]
    idle = [each for each in leaving if not each.queued]
    free = on_demand - taken - sum([each.nbytes for each in residents])
    if needed > on_demand:
        if len(leaving) == len(residents) and not taken:
            return LoadPlan(tuple(each.model_id for each in residents))
        return LoadPlan(None, _next_leaving(residents, now))
    for willing in ([each for each in idle if each.settled_at() <= now], idle, leaving):
        victims = plan_eviction(willing, needed, free)
        if victims is not None:
            return LoadPlan(victims)
    return LoadPlan(None, _next_leaving(residents, now))


def plan_room(needed: int, residents: Sequence[Resident], on_demand: int) -> tuple[str, ...]:
    """Who leaves at once so that a model can come that an operator loads: idle ones first, everyone if it must be."""
    free = on_demand - sum([each.nbytes for each in residents])
    for willing in ([each for each in residents if not each.queued], residents):
        victims = plan_eviction(willing, needed, free)
        if victims is not None:
            return victims
    return tuple(each.model_id for each in residents)


def _next_leaving(residents: Iterable[Resident], now: float) -> float:
    return min([each.leaves_at() for each in residents if each.leaves_at() > now], default=inf)
