"""Keeps models where they belong: looks at the workers, places models anew when it is time, tells the proxy.

A model is on its new worker before a request is sent there, and leaves the old one after that.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import orjson

from app.domain.config import ClusterConfig
from app.scaleout.demand import CompactionPace, Counts, DemandBook, Meter, RepackTrigger, models_to_reload
from app.scaleout.filling import Fill, FillRules
from app.scaleout.fleet import Fleet
from app.scaleout.joining import ClusterError, ModelFacts, Status, counts_of, facts_of, join, statuses_of
from app.scaleout.placement import Demand, Placement, Rules, changed_workers, overfull, place
from app.scaleout.proxy import ProxyError
from app.scaleout.routes import Routes, routes

logger = logging.getLogger(__name__)

#: Seconds that the workers have to tell their status, and to bring weights.
STATUS_SECONDS, LOAD_SECONDS = 8.0, 300.0

#: Seconds after which a proxy that was not there is told again.
TELL_AGAIN_SECONDS = 0.5

#: Rounds in which no worker answers, after which there is nothing left to control.
LOST_ROUNDS = 3


class Proxy(Protocol):
    """What is told where models are."""

    async def tell(self, routes: Routes) -> None:
        """Change all of it. Raises `ProxyError`."""


class Fills(NamedTuple):
    """What differs for single models."""

    modes: Mapping[str, Fill] = MappingProxyType({})
    factors: Mapping[str, float] = MappingProxyType({})


class Controller:
    """One task does everything, one thing after the other; what operators want is put in its queue."""

    def __init__(self, fleet: Fleet, proxy: Proxy, config: ClusterConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self.fills = Fills()
        self.placement: Placement | None = None
        self.routes: Routes | None = None
        self.warnings: tuple[str, ...] = ()
        self.repacks = 0
        self._fleet = fleet
        self._proxy = proxy
        self._clock = clock
        self._meter, self._busy = Meter(), Meter()
        self._book = DemandBook(config.rebalance_compute_seconds)
        self._trigger = RepackTrigger(config.first_rebalance_compute_seconds, config.rebalance_compute_seconds)
        self._pace = CompactionPace()
        self._wanted: asyncio.Queue[tuple[Callable[[], Awaitable[None]], Future[None]]] = asyncio.Queue()
        self._statuses: Mapping[str, Status] = {}
        self._looked_at: float | None = None
        self._silent_rounds = 0
        self._to_compact: tuple[str, ...] = ()
        self._untold = False
        """Whether the proxy does not know yet where models are."""

    async def run(self) -> None:
        """Until cancelled. Raises `ClusterError` when the workers are unfit, or answer no more."""
        self._statuses = await join(self._fleet, self.config.start_seconds)
        self._learn()
        await self._repack()
        looks_at = self._clock() + self.config.poll_seconds
        while True:
            pause = max(looks_at - self._clock(), 0.0)
            try:
                command, done = await asyncio.wait_for(
                    self._wanted.get(), min(pause, TELL_AGAIN_SECONDS) if self._untold else pause
                )
            except TimeoutError:
                if self._untold:
                    await self._tell_again()
                if self._clock() >= looks_at:
                    if await self.look():
                        await self._repack()
                    looks_at = self._clock() + self.config.poll_seconds
                continue
            await _obey(command, done)

    async def look(self) -> bool:
        """Ask every worker for its status; whether enough was computed for another placement."""
        await self._compact()
        answers = await self._fleet.ask_all("/status", seconds=STATUS_SECONDS)
        self._silent_rounds = self._silent_rounds + 1 if all(each.silent for each in answers.values()) else 0
        if self._silent_rounds >= LOST_ROUNDS:
            raise ClusterError(f"no worker has told its status in {LOST_ROUNDS} rounds")
        self._statuses = statuses_of(answers)
        return self._trigger.spend(self._learn())

    # what operators want

    async def repack(self) -> None:
        """Look and place anew, now."""
        await self._ask(self._look_and_repack)

    async def change(self, config: ClusterConfig, fills: Fills) -> None:
        """Obey other settings from now on, and place anew."""

        async def apply() -> None:
            logger.info("cluster settings: %s %s -> %s %s", self.config, self.fills, config, fills)
            self.config, self.fills = config, fills
            self._trigger.then = self._book.halflife = config.rebalance_compute_seconds
            await self._look_and_repack()

        await self._ask(apply)

    async def tell_again(self) -> None:
        """For a proxy that starts anew: as often as it takes until it has heard."""
        if self.routes is not None:
            await self._ask(self._tell_again)

    async def _ask(self, command: Callable[[], Awaitable[None]]) -> None:
        done: Future[None] = asyncio.get_running_loop().create_future()
        await self._wanted.put((command, done))
        await done

    async def _look_and_repack(self) -> None:
        await self.look()
        await self._repack()

    # the task

    def _learn(self) -> float:
        """Take in what was counted since the last look; the seconds that the fleet computed."""
        now = self._clock()
        seconds = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        self._book.fold(self._meter.read(counts_of(self._statuses)), seconds)
        if self._statuses:  # where nobody said anything, that says nothing about the models
            self._book.forget(facts_of(self._statuses))
        busy = {(name, ""): Counts(0, 0, each["device_busy_seconds"]) for name, each in self._statuses.items()}
        return sum(window.compute for window in self._busy.read(busy).values())

    async def _repack(self) -> None:
        facts = facts_of(self._statuses)
        budgets = {name: each["weight_pool_bytes"] for name, each in self._statuses.items()}
        if not budgets:
            return
        placed = self._placed(facts, budgets)
        told = routes(placed, self._fleet.names, lambda model: self._quantum(model, facts), self.routes)
        await self._bring(self.placement, placed)
        await self._tell(told)
        moved = changed_workers(self.placement, placed)
        first = self.placement is None
        self.placement, self.routes = placed, told
        self.repacks += 1
        self._warn(placed, told, budgets)
        logger.info("placed %d models on %d workers: %s", len(placed.homes), len(budgets), _moves(moved))
        config = self.config
        if not first and self._pace.due(config.compaction, config.compaction_every, moved=bool(moved)):
            self._to_compact = moved

    def _placed(self, facts: Mapping[str, ModelFacts], budgets: Mapping[str, int]) -> Placement:
        demands = {model: Demand(self._book.load(model), each.nbytes) for model, each in facts.items()}
        config = self.config
        rules = Rules(
            config.default_replicas, config.replicas, config.hysteresis, config.oversubscription == "soft"
        )  # fmt: skip
        return place(demands, budgets, rules, self.placement, {model: each.holders for model, each in facts.items()})

    def _quantum(self, model: str, facts: Mapping[str, ModelFacts]) -> int | None:
        rules = FillRules(self.config.fill, self.config.quantum_factor, self.fills.modes, self.fills.factors)
        return rules.of(model, facts[model].max_batch)

    async def _bring(self, before: Placement | None, after: Placement) -> None:
        """Have the weights of what moves on its new workers. What cannot be brought comes with its first request."""
        if before is None:
            return
        arriving: dict[str, list[str]] = {}
        for model, workers in after.homes.items():
            for worker in set(workers) - set(before.homes.get(model, ())):
                arriving.setdefault(worker, []).append(model)
        await asyncio.gather(
            *[self._command(worker, "/admin/prefetch", {"models": models}) for worker, models in arriving.items()]
        )

    async def _compact(self) -> None:
        """What moved away a round ago has answered its last requests there."""
        changed, self._to_compact = self._to_compact, ()
        placement = self.placement
        if placement is None:
            return
        for worker in changed:
            here = [model for model, workers in placement.homes.items() if worker in workers]
            await self._command(worker, "/admin/compact", {"reload": models_to_reload(self.config.compaction, here)})

    async def _command(self, name: str, path: str, body: Mapping[str, Any]) -> None:
        answer = await self._fleet.ask(
            self._fleet.worker(name), path, "POST", orjson.dumps(body), seconds=LOAD_SECONDS
        )  # fmt: skip
        if not answer.ok:
            logger.warning("%s on %s: %s", path, name, answer.text or answer.content.decode(errors="replace"))

    async def _tell_again(self) -> None:
        assert self.routes is not None
        await self._tell(self.routes)

    async def _tell(self, told: Routes) -> None:
        try:
            await self._proxy.tell(told)
        except ProxyError as error:  # as while it starts anew: it is told again
            if not self._untold:
                logger.error("%s", error)
            self._untold = True
        else:
            self._untold = False

    def _warn(self, placed: Placement, told: Routes, budgets: Mapping[str, int]) -> None:
        """Each repack, as long as it is so."""
        found = [
            f"worker {worker} was given {nbytes} bytes of weights and has room for {budgets[worker]}"
            for worker, nbytes in overfull(placed, budgets).items()
        ]
        found += [f"model {model} has drifted: not all ready workers have it" for model in placed.drifted]
        found += [f"model {model} is served by all workers: too many sets of workers" for model in told.without]
        self.warnings = tuple(found)
        for warning in found:
            logger.warning("%s", warning)


async def _obey(command: Callable[[], Awaitable[None]], done: Future[None]) -> None:
    """Do what somebody wants who may have gone. Raises `ClusterError`."""
    try:
        await command()
    except Exception as error:
        if not done.done():
            done.set_exception(error)
        if isinstance(error, ClusterError):
            raise
    else:
        if not done.done():
            done.set_result(None)


def _moves(changed: tuple[str, ...]) -> str:
    return f"{', '.join(changed)} changed" if changed else "nothing moved"
