"""From queues, costs and ledger to the frozen statistics."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from app.scheduling.learning import CostBook, UsageLedger
from app.scheduling.planning import merge_cap
from app.scheduling.queues import ModelQueue
from app.scheduling.request import QueuedRequest
from app.scheduling.stats import ModelStats

R = TypeVar("R", bound=QueuedRequest)

#: Recent device time, in seconds, below which a model without queued requests is not in use.
TRACE_SECONDS = 1e-3


def report(
    queues: Mapping[str, ModelQueue[R]], costs: CostBook, ledger: UsageLedger, now: float
) -> Mapping[str, ModelStats]:
    """One `ModelStats` per model id. A replaced generation is part of its heir."""
    depths = dict.fromkeys(queues, 0)
    for queue in queues.values():
        depths[_reported_as(queue, queues).model_id] += queue.depth
    current = [queue for queue in queues.values() if _reported_as(queue, queues) is queue]
    recent = {queue.model_id: ledger.recent(queue.account, now) for queue in current}
    in_use = {id_ for id_, seconds in recent.items() if depths[id_] or seconds > TRACE_SECONDS}
    total_weight = sum([queue.policy.weight for queue in current if queue.model_id in in_use])
    total_recent = sum(recent.values())
    return MappingProxyType(
        {
            queue.model_id: _model_stats(
                queue,
                costs,
                depth=depths[queue.model_id],
                recent=recent[queue.model_id],
                target=queue.policy.weight / total_weight if queue.model_id in in_use else 0.0,
                actual=recent[queue.model_id] / total_recent if total_recent else 0.0,
            )
            for queue in current
        }
    )


def _reported_as(queue: ModelQueue[R], queues: Mapping[str, ModelQueue[R]]) -> ModelQueue[R]:
    while queue.heir is not None and queue.heir in queues:
        queue = queues[queue.heir]
    return queue


def _model_stats(
    queue: ModelQueue[R], costs: CostBook, *, depth: int, recent: float, target: float, actual: float
) -> ModelStats:
    counters = queue.counters
    return ModelStats(
        model_id=queue.model_id,
        name=queue.name,
        weight=queue.policy.weight,
        max_batch_size=_most_rows(queue),
        queue_depth=depth,
        dispatches=counters.dispatches,
        requests=counters.requests,
        rows=counters.rows,
        padded_rows=counters.padded_rows,
        compute_seconds=counters.compute_seconds,
        drops=dict(counters.drops),
        recent_seconds=recent,
        share_target=target,
        share_actual=actual,
        costs=costs.costs(queue.model_id),
        load_seconds=costs.estimate_load(queue.model_id),
        reserve_seconds=queue.reserve.seconds if queue.policy.reserve_ms is None else queue.policy.reserve_ms / 1e3,
        batch_rows=dict(counters.batch_rows),
        batch_seconds=dict(counters.batch_seconds),
        batch_sizes=dict(counters.batch_sizes),
        gap_buckets=tuple(counters.gaps.buckets),
        gap_seconds=counters.gaps.total,
        waits=counters.waits.snapshot(),
    )


def _most_rows(queue: ModelQueue[R]) -> int | None:
    largest = max((queue.spec.largest(variant.key) or 0 for variant in queue.spec.variants), default=0)
    if not largest:
        return None
    cap = merge_cap(queue.spec, queue.policy)
    return largest if cap is None else min(cap, largest)
