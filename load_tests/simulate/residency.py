"""Where weights are: rules for a device that does not hold them all, and what each of them did."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import ClassVar, Protocol

from app.scheduling.request import QueuedRequest
from app.scheduling.residency import Resident, budget, plan_eviction, plan_load
from app.scheduling.scheduler import Scheduler
from load_tests.simulate.models import SimulatedModel


@dataclass(slots=True)
class Held:
    """One model, on the device or not. Instants and seconds are of the virtual clock."""

    model: SimulatedModel
    resident: bool
    loaded_at: float = -inf
    used_at: float = -inf
    worked: bool = False
    wanted_since: float = inf
    """Since when it has had queued work without its weights being there."""
    loads: int = 0
    wasted: int = 0
    """Loads after which it left before it had run."""
    longest_cold: float = 0.0
    """Longest time that it had queued work without its weights being there."""


class Memory:
    """The device memory, in the unit of the models' `nbytes`; `room` 0 holds everything from the start."""

    def __init__(self, scheduler: Scheduler[QueuedRequest], models: Sequence[SimulatedModel], room: int) -> None:
        self.room = budget(room, fraction=1.0, wiggle=0.0, scratch=0, pinned=0).on_demand
        self.held = {model.name: Held(model, resident=not room) for model in models}
        self._scheduler = scheduler
        for model in models if room else ():
            scheduler.set_weights(model.name, "cold")
            scheduler.record_load(model.name, model.load_ms / 1e3, 0.0)

    def put(self, model_id: str, now: float) -> None:
        """The weights are there."""
        held = self.held[model_id]
        held.resident, held.worked = True, False
        held.loaded_at = held.used_at = now
        held.loads += 1
        self._scheduler.set_weights(model_id, "resident")

    def use(self, model_id: str, now: float) -> None:
        """The model is about to run, or has run."""
        held = self.held[model_id]
        held.used_at, held.worked = now, True

    def evict(self, model_ids: Collection[str]) -> None:
        """The weights leave."""
        for model_id in model_ids:
            held = self.held[model_id]
            held.resident = False
            held.wasted += not held.worked
            self._scheduler.set_weights(model_id, "cold")

    def residents(self, queued: Collection[str] = ()) -> list[Resident]:
        """What is there; `queued` are the models with queued work."""
        return [
            Resident(
                name, held.model.nbytes, held.used_at, held.loaded_at, held.model.load_ms / 1e3, held.worked,
                name in queued,
            )
            for name, held in self.held.items()
            if held.resident
        ]  # fmt: skip

    def watch(self, queued: Collection[str], now: float) -> None:
        """Note which models have work and no weights."""
        for name, held in self.held.items():
            if held.resident or name not in queued:
                held.longest_cold = max(held.longest_cold, now - held.wanted_since)
                held.wanted_since = inf
            else:
                held.wanted_since = min(held.wanted_since, now)


class Residency(Protocol):
    """Decides loads and evictions and tells the scheduler, which is made with its `background_loads`."""

    background_loads: ClassVar[bool]
    memory: Memory
    loading: str | None
    """What a background load is bringing."""

    def __init__(self, scheduler: Scheduler[QueuedRequest], models: Sequence[SimulatedModel], room: int) -> None: ...

    def tend(self, now: float) -> float:
        """Before each decision: finish the background load that is done, start another; when to be asked again."""

    def acquire(self, model_id: str, now: float) -> bool:
        """Before a model runs: make room for it; whether the device must wait for its weights first."""


class AllResident:
    """A device that holds everything."""

    background_loads: ClassVar[bool] = False

    def __init__(self, scheduler: Scheduler[QueuedRequest], models: Sequence[SimulatedModel], room: int) -> None:
        self.memory = Memory(scheduler, models, 0)
        self.loading: str | None = None

    def tend(self, now: float) -> float:
        """Nothing to do, ever."""
        return inf

    def acquire(self, model_id: str, now: float) -> bool:
        """Everything is there."""
        return False


class WaitingLru:
    """What servers commonly do: whichever model is next is loaded first if it must be, in place of the least recently
    used ones, and the device waits."""

    background_loads: ClassVar[bool] = False

    def __init__(self, scheduler: Scheduler[QueuedRequest], models: Sequence[SimulatedModel], room: int) -> None:
        self._scheduler = scheduler
        self.memory = Memory(scheduler, models, room)
        self.loading: str | None = None

    def tend(self, now: float) -> float:
        """Loads begin with a dispatch only."""
        self.memory.watch(self._scheduler.busy(), now)
        return inf

    def acquire(self, model_id: str, now: float) -> bool:
        """Make room at once, whoever has to go."""
        memory = self.memory
        held = memory.held[model_id]
        there = held.resident
        if not there:
            residents = memory.residents()
            free = memory.room - sum([each.nbytes for each in residents])
            victims = plan_eviction(residents, held.model.nbytes, free)
            memory.evict([each.model_id for each in residents] if victims is None else victims)
            memory.put(model_id, now + held.model.load_ms / 1e3)
        memory.use(model_id, now)
        return not there


class Background:
    """The server's rule: its own plans over its own scheduler, one load at a time while resident models are served."""

    background_loads: ClassVar[bool] = True

    def __init__(self, scheduler: Scheduler[QueuedRequest], models: Sequence[SimulatedModel], room: int) -> None:
        self._scheduler = scheduler
        self.memory = Memory(scheduler, models, room)
        self.loading: str | None = None
        self._there_at = inf

    def tend(self, now: float) -> float:
        """Take over what was loaded; start the load of the model that is wanted first, once somebody may leave."""
        if self.loading is not None and self._there_at <= now:
            self.memory.put(self.loading, now)
            self._scheduler.record_load(self.loading, self.memory.held[self.loading].model.load_ms / 1e3, now)
            self.loading, self._there_at = None, inf
        busy = self._scheduler.busy()
        self.memory.watch(busy, now)
        wanted = self._scheduler.wanted(now)
        if self.loading is not None or not wanted:
            return self._there_at
        memory, model = self.memory, self.memory.held[wanted[0]].model
        plan = plan_load(model.nbytes, memory.residents(busy), memory.room, now)
        if plan.victims is None:
            return plan.look_again_at
        memory.evict(plan.victims)
        self.loading, self._there_at = model.name, now + model.load_ms / 1e3
        self._scheduler.set_weights(model.name, "loading")
        return self._there_at

    def acquire(self, model_id: str, now: float) -> bool:
        """Only what is there is ever chosen."""
        self.memory.use(model_id, now)
        return False


#: By name: `weights=` of a rule.
RESIDENCIES: Mapping[str, type[Residency]] = MappingProxyType(
    {"background": Background, "waiting": WaitingLru, "resident": AllResident}
)
