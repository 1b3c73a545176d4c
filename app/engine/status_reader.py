"""Puts the snapshot of the node together from what each part publishes."""

import asyncio
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from app.backends.base import Backend
from app.engine.digests import PolicyDigests
from app.engine.readiness import Readiness
from app.engine.status import BatchAxis, ModelStatus, NodeStatus, Serving
from app.repository.files import readable_path
from app.runtime.dispatcher import Dispatcher
from app.runtime.holdings import ModelResidency
from app.runtime.hook_pool import HookPool
from app.runtime.registry import Generation, ModelEntry, ModelRegistry
from app.runtime.watcher import RepositoryWatcher
from app.runtime.weights import WeightCache
from app.scheduling.stats import ModelStats, SchedulerStats, quantile

#: By model name.
Entries = Mapping[str, ModelEntry]

#: Models that are looked at in one turn of the event loop, and while the dispatcher's lock is held: half a millisecond.
AT_ONCE = 12


def is_compiled() -> bool:
    """Whether this is the wheel of `app.wheel`, in which the dispatcher, among others, is no Python file."""
    return not str(sys.modules[Dispatcher.__module__].__file__).endswith(".py")


class StatusReader:
    """Puts the snapshot together from what each part publishes. Event loop only."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: ModelRegistry,
        weights: WeightCache,
        backend: Backend,
        device: str,
        hooks: HookPool,
        watcher: RepositoryWatcher,
        readiness: Readiness,
        digests: PolicyDigests,
        control_mode: str,
    ) -> None:
        self._dispatcher = dispatcher
        self._registry = registry
        self._weights = weights
        self._backend = backend
        self._device = device
        self._hooks = hooks
        self._watcher = watcher
        self._readiness = readiness
        self._digests = digests
        self._control_mode = control_mode

    def read(self, only: str | None = None) -> NodeStatus:
        """The snapshot now; with `only`, of one public model and the node."""
        reading = self._reading(only)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                status: NodeStatus = end.value
                return status

    async def read_in_turns(self) -> NodeStatus:
        """The snapshot, over as many turns of the loop as there are dozens of models: requests go between."""
        reading = self._reading()
        while True:
            try:
                next(reading)
            except StopIteration as end:
                status: NodeStatus = end.value
                return status
            await asyncio.sleep(0)

    def _reading(self, only: str | None = None) -> Generator[None, None, NodeStatus]:
        """Stops between a few models and the next."""
        entries, public, stats = yield from self._consistent(only)
        memory = self._backend.memory()
        weights = self._weights.snapshot()
        return NodeStatus(
            backend=self._backend.name,
            device=self._device,
            compiled_code=is_compiled(),
            discipline=stats.discipline,
            control_mode=self._control_mode,
            residency_mode="externally_managed" if self._control_mode == "explicit" else "self_managed",
            alive=self._dispatcher.alive,
            draining=self._readiness.draining,
            queue_depth=stats.queue_depth,
            hook_pool_depth=self._hooks.depth,
            share_wait_seconds_max=stats.share_wait_seconds_max,
            device_busy_seconds=self._dispatcher.log.busy_seconds,
            device_memory_in_use_bytes=memory.in_use,
            device_memory_limit_bytes=memory.limit,
            resident_weight_bytes=weights.resident_bytes,
            pinned_weight_bytes=weights.pinned_bytes,
            scratch_bytes=weights.scratch_bytes,
            weight_pool_bytes=weights.budget.pool,
            weight_on_demand_bytes=weights.budget.on_demand,
            weight_hit_rate=_hit_rate(weights.demand_loads, stats) if weights.arena else None,
            compactions=weights.compactions,
            problems={readable_path(path): fault for path, fault in self._watcher.problems.items()},
            models=(yield from _models(entries, public, stats.models, weights.models, self._digests)),
        )

    def _consistent(self, only: str | None) -> Generator[None, None, tuple[Entries, Entries, SchedulerStats]]:
        """Registry and counters of the same generations: a model that is being swapped is never missed."""
        while True:
            everything, public = self._registry.entries, self._registry.public
            names = everything if only is None else _with_calls(everything, only)
            entries = {name: everything[name] for name in names}
            stats, models = self._dispatcher.stats(models=False), dict[str, ModelStats]()
            ids = [each.generation.model_id for each in entries.values() if each.generation is not None]
            for at in range(0, len(ids), AT_ONCE):
                models |= self._dispatcher.sample(ids[at : at + AT_ONCE], stats.usage)
                yield
            if self._registry.entries is everything or all(model_id in models for model_id in ids):
                return entries, public, replace(stats, models=models)


def _with_calls(entries: Mapping[str, ModelEntry], name: str) -> Iterator[str]:
    """A model, if it is there, and those that it calls."""
    if (entry := entries.get(name)) is None:
        return
    yield name
    calls = entry.generation.bundle.spec.meta_models if entry.generation is not None else None
    yield from (each for each in calls or () if each in entries)


def _hit_rate(loads: int, stats: SchedulerStats) -> float | None:
    """Part of the dispatches that found the weights on the device; None before the first."""
    dispatches = sum([each.dispatches for each in stats.models.values()])
    return max(1 - loads / dispatches, 0.0) if dispatches else None


def _models(
    entries: Mapping[str, ModelEntry],
    public: Mapping[str, ModelEntry],
    stats: Mapping[str, ModelStats],
    residency: Mapping[str, ModelResidency],
    digests: PolicyDigests,
) -> Generator[None, None, tuple[ModelStatus, ...]]:
    """What is served, in order of names; a meta model is one unit with the models it calls."""
    known: dict[str, ModelStatus] = {}
    for at, (name, entry) in enumerate(sorted(entries.items())):
        known[name] = _model(entry, stats, residency, digests)
        if at % AT_ONCE == AT_ONCE - 1:
            yield
    told = []
    for name, model in known.items():
        generation = entries[name].generation
        if generation is not None and (calls := generation.bundle.spec.meta_models) is not None:
            model = _with_parts(model, generation, tuple(known[each] for each in calls if each in known))
        if (shown := public.get(name)) is not None:
            told.append(replace(model, state=str(shown.state), reason=shown.reason))
    return tuple(told)


def _with_parts(model: ModelStatus, generation: Generation, parts: tuple[ModelStatus, ...]) -> ModelStatus:
    """A meta model as one unit: the weights of all it calls, on the device when all are, its part of their time."""
    if model.serving is None:
        return replace(model, parts=parts)
    held = [part.serving for part in parts if part.serving is not None]
    serving = replace(
        model.serving,
        resident=len(held) == len(parts) and all(each.resident for each in held),
        weight_bytes=sum(each.weight_bytes for each in held),
        compute_seconds=generation.account.compute_seconds,
    )
    return replace(model, serving=serving, parts=parts)


def _model(
    entry: ModelEntry,
    stats: Mapping[str, ModelStats],
    residency: Mapping[str, ModelResidency],
    digests: PolicyDigests,
) -> ModelStatus:
    generation = entry.generation
    counted = stats.get(generation.model_id) if generation is not None else None
    serving = None
    held = residency.get(generation.model_id) if generation is not None else None
    if generation is not None and counted is not None and held is not None:
        serving = _serving(generation, counted, held, digests.of(generation))
    return ModelStatus(entry.name, str(entry.state), entry.reason, serving)


#: What the scheduler counts and `Serving` tells as it is.
_AS_COUNTED = tuple(
    {each.name for each in fields(Serving)} & {each.name for each in fields(ModelStats)} - {"costs"},
)


def _serving(generation: Generation, stats: ModelStats, held: ModelResidency, policy_digest: str) -> Serving:
    spec, account = generation.bundle.spec, generation.account
    safety = spec.batch_safety
    costs: dict[str, dict[int, float]] = {}
    for (variant, size), seconds in stats.costs.items():
        costs.setdefault(variant, {})[size] = seconds
    waits = sorted(stats.waits)  # once for both quantiles: what is in order is sorted in no time
    counted: dict[str, Any] = {name: getattr(stats, name) for name in _AS_COUNTED}
    return Serving(
        **counted,
        version=spec.version,
        digest=generation.bundle.digest,
        policy_digest=policy_digest,
        wait_p50=quantile(waits, 0.5),
        wait_p99=quantile(waits, 0.99),
        costs=costs,
        batchable=spec.coalescible,
        batch_safety=str(safety.verdict) if safety is not None else "",
        batch_deviation=safety.figure if safety is not None else None,
        batching_reason=spec.batching_reason,
        batch_axis=next(
            (BatchAxis(each.name, each.batch_axis + 1) for each in spec.client_inputs if each.batch_axis is not None),
            None,
        ),
        resident=held.resident,
        residency_floor=str(held.floor),
        provider=held.provider,
        graphs=held.graphs,
        weight_bytes=held.weight_bytes,
        weight_loads=held.loads,
        weight_evicts=held.evicts,
        weight_load_seconds=held.load_seconds,
        accepted=account.accepted,
        diverted=account.diverted,
        ok=account.ok,
        failed=account.failed,
        dropped=dict(account.drops),
        in_flight=account.in_flight,
        latency_buckets=tuple(account.latency.buckets),
        latency_sum=account.latency.total,
        ok_seconds=account.ok_seconds,
        answered_at=account.answered_at,
        stage_buckets=tuple([tuple(each.buckets) for each in account.stages]),
        stage_sums=tuple([each.total for each in account.stages]),
    )
