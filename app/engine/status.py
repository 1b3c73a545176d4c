"""What a gateway and an operator read: the node and every model, in one frozen snapshot."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.backends.base import Backend
from app.engine.digests import PolicyDigests
from app.runtime.dispatcher import Dispatcher
from app.runtime.holdings import ModelResidency
from app.runtime.hook_pool import HookPool
from app.runtime.registry import Generation, ModelEntry, ModelRegistry
from app.runtime.watcher import RepositoryWatcher
from app.runtime.weights import WeightCache
from app.scheduling.stats import ModelStats, SchedulerStats, quantile


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """On which axis (1-based, in wire order) of which client input a gateway can count rows."""

    input: str
    axis: int


@dataclass(frozen=True, slots=True)
class Serving:
    """Counters and averages of a model that serves. Seconds and bytes; counters run since the model was loaded.

    `batch_safety` is the verdict on its batches, empty where it has none to judge; `batch_deviation` by how much of
    its range an answer depends on the rows beside it, None for no figure; `batching_reason` why requests do not merge,
    or what is to be known where they do.
    """

    version: str
    digest: str
    policy_digest: str
    weight: float
    queue_depth: int
    dispatches: int
    requests: int
    rows: int
    padded_rows: int
    compute_seconds: float
    recent_seconds: float
    share_target: float
    share_actual: float
    wait_p50: float
    wait_p99: float
    batch_rows: Mapping[int, int]
    batch_seconds: Mapping[int, float]
    batch_sizes: Mapping[int, int]
    gap_buckets: tuple[int, ...]
    gap_seconds: float
    max_batch_size: int | None
    costs: Mapping[str, Mapping[int, float]]
    batchable: bool
    batch_safety: str
    batch_deviation: float | None
    batching_reason: str
    batch_axis: BatchAxis | None
    resident: bool
    residency_floor: str
    provider: str
    graphs: Mapping[str, Sequence[int]]
    weight_bytes: int
    weight_loads: int
    weight_evicts: int
    weight_load_seconds: float
    accepted: int
    diverted: int
    ok: int
    failed: int
    dropped: Mapping[str, int]
    in_flight: int
    latency_buckets: tuple[int, ...]
    latency_sum: float
    ok_seconds: float
    answered_at: float | None
    stage_buckets: tuple[tuple[int, ...], ...]
    stage_sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model; `serving` is None while nothing can be served under the name."""

    name: str
    state: str
    reason: str
    serving: Serving | None
    parts: tuple["ModelStatus", ...] = ()
    """Of a meta model: the models it calls, which are served by themselves only where their manifests say so."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The node at one instant. `device` is the ordinal of the device, or "cpu"."""

    backend: str
    device: str
    discipline: str
    control_mode: str
    residency_mode: str
    alive: bool
    queue_depth: int
    hook_pool_depth: int
    share_wait_seconds_max: float
    device_busy_seconds: float
    device_memory_in_use_bytes: int
    device_memory_limit_bytes: int
    resident_weight_bytes: int
    pinned_weight_bytes: int
    scratch_bytes: int
    weight_pool_bytes: int
    weight_on_demand_bytes: int
    weight_hit_rate: float | None
    compactions: int
    problems: Mapping[str, str]
    models: tuple[ModelStatus, ...]


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
        self._digests = digests
        self._control_mode = control_mode

    def read(self) -> NodeStatus:
        """The snapshot now."""
        entries, stats = self._consistent()
        memory = self._backend.memory()
        weights = self._weights.snapshot()
        residency = {model.model_id: model for model in weights.models}
        return NodeStatus(
            backend=self._backend.name,
            device=self._device,
            discipline=stats.discipline,
            control_mode=self._control_mode,
            residency_mode="externally_managed" if self._control_mode == "explicit" else "self_managed",
            alive=self._dispatcher.alive,
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
            problems={_readable(path): fault for path, fault in self._watcher.problems.items()},
            models=_models(entries, self._registry.public, stats.models, residency, self._digests),
        )

    def _consistent(self) -> tuple[Mapping[str, ModelEntry], SchedulerStats]:
        """Registry and counters as of one instant: a model that is being swapped is never missed."""
        while True:
            entries = self._registry.entries
            stats = self._dispatcher.stats()
            if self._registry.entries is entries:
                return entries, stats


def _readable(path: Path) -> str:
    """A path as text, also where its bytes are no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


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
) -> tuple[ModelStatus, ...]:
    """What is served, in order of names; a meta model is one unit with the models it calls."""
    known = {name: _model(entry, stats, residency, digests) for name, entry in sorted(entries.items())}
    told = []
    for name, model in known.items():
        generation = entries[name].generation
        if generation is not None and (calls := generation.bundle.spec.meta_models) is not None:
            model = _with_parts(model, generation, tuple(known[each] for each in calls if each in known))
            missing = [each for each in calls if each not in known or known[each].serving is None]
            if missing and not model.reason:
                model = replace(model, reason=f"calls {', '.join(missing)}, not loaded: load that too")
        if name in public:
            told.append(model)
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
_AS_COUNTED = tuple({each.name for each in fields(Serving)} & {each.name for each in fields(ModelStats)} - {"costs"})


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
