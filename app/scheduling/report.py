"""From queues, costs and ledger to the frozen statistics.

`usage` looks only at models that have work or had some lately; the rest is told model by model. So whoever holds a lock
meanwhile can let go of it between two models, and thousands that are idle cost nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from app.scheduling.contention import Contention
from app.scheduling.learning import CostBook, UsageLedger
from app.scheduling.planning import merge_cap
from app.scheduling.queues import ModelQueue
from app.scheduling.request import QueuedRequest
from app.scheduling.stats import UNUSED, ModelStats, SchedulerStats, Usage

R = TypeVar("R", bound=QueuedRequest)

#: Recent device time, in seconds, below which a model without queued requests is not in use.
TRACE_SECONDS = 1e-3


class Report(Generic[R]):
    """Reads what a `Scheduler` knows; changes nothing."""

    def __init__(
        self,
        discipline: str,
        queues: Mapping[str, ModelQueue[R]],
        active: Mapping[str, ModelQueue[R]],
        contention: Contention,
        costs: CostBook,
        ledger: UsageLedger,
    ) -> None:
        self._discipline = discipline
        self._queues = queues
        self._active = active
        self._contention = contention
        self._costs = costs
        self._ledger = ledger

    def name_of(self, model_id: str) -> str:
        """The name under which a model that is known is served."""
        return self._queues[model_id].name

    def everything(self, now: float) -> SchedulerStats:
        """The overview, with every model."""
        stats = self.overview(now)
        return replace(stats, models=self.sample(self._queues, stats.usage))

    def overview(self, now: float) -> SchedulerStats:
        """All but the single models."""
        return SchedulerStats(
            discipline=self._discipline,
            queue_depth=sum([queue.depth for queue in self._active.values()]),
            share_wait_seconds_max=self._contention.longest_wait,
            usage=usage(self._queues, self._active.values(), self._ledger, now),
        )

    def sample(self, model_ids: Iterable[str], used: Mapping[str, Usage]) -> dict[str, ModelStats]:
        """Some models, those that are known and were not replaced."""
        known = [self._queues[model_id] for model_id in model_ids if model_id in self._queues]
        return {
            queue.model_id: model_stats(queue, self._costs, used.get(queue.model_id, UNUSED))
            for queue in known
            if queue.heir not in self._queues
        }


def usage(
    queues: Mapping[str, ModelQueue[R]], active: Iterable[ModelQueue[R]], ledger: UsageLedger, now: float
) -> Mapping[str, Usage]:
    """What the models in use have queued and used, by model id. A replaced generation is part of its heir."""
    depths: dict[str, int] = {}
    for queue in active:
        heir = _reported_as(queue, queues).model_id
        depths[heir] = depths.get(heir, 0) + queue.depth
    charged = ledger.all_recent(now)
    by_account = {queue.account: queue.model_id for queue in queues.values() if queue.heir not in queues}
    recent = {by_account[account]: seconds for account, seconds in charged.items() if account in by_account}
    in_use = depths.keys() | {model_id for model_id, seconds in recent.items() if seconds > TRACE_SECONDS}
    total_weight = sum([queues[model_id].policy.weight for model_id in in_use], 0.0)
    total_recent = sum(recent.values(), 0.0)
    return {
        model_id: Usage(
            depths.get(model_id, 0),
            recent.get(model_id, 0.0),
            queues[model_id].policy.weight / total_weight if model_id in in_use else 0.0,
            recent.get(model_id, 0.0) / total_recent if total_recent else 0.0,
        )
        for model_id in in_use | recent.keys()
    }


def _reported_as(queue: ModelQueue[R], queues: Mapping[str, ModelQueue[R]]) -> ModelQueue[R]:
    while queue.heir is not None and queue.heir in queues:
        queue = queues[queue.heir]
    return queue


def model_stats(queue: ModelQueue[R], costs: CostBook, used: Usage) -> ModelStats:
    """One model."""
    counters = queue.counters
    return ModelStats(
        model_id=queue.model_id,
        name=queue.name,
        weight=queue.policy.weight,
        max_batch_size=_most_rows(queue),
        queue_depth=used.queue_depth,
        dispatches=counters.dispatches,
        requests=counters.requests,
        rows=counters.rows,
        padded_rows=counters.padded_rows,
        compute_seconds=counters.compute_seconds,
        drops=dict(counters.drops),
        recent_seconds=used.recent_seconds,
        share_target=used.share_target,
        share_actual=used.share_actual,
        costs=costs.costs(queue.model_id),
        reserve_seconds=queue.reserve.seconds if queue.policy.reserve_ms is None else queue.policy.reserve_ms / 1e3,
        batch_rows=dict(counters.batch_rows),
        batch_seconds=dict(counters.batch_seconds),
        batch_sizes=dict(counters.batch_sizes),
        gap_buckets=tuple(counters.gaps.buckets),
        gap_seconds=counters.gaps.total,
        waits=counters.waits.snapshot(),
    )


def _most_rows(queue: ModelQueue[R]) -> int | None:
    largest = max([queue.spec.largest(variant.key) or 0 for variant in queue.spec.variants], default=0)
    if not largest:
        return None
    cap = merge_cap(queue.spec, queue.policy)
    return largest if cap is None else min(cap, largest)
