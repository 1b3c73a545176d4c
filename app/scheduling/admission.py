"""Early refusal: a queue that is full, a deadline that cannot be met. Decided before anything is spent on a request."""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from app.domain.config import SchedulerConfig
from app.domain.errors import DeadlineInfeasible, InvalidRequest, QueueFull
from app.scheduling.deadlines import feasible
from app.scheduling.disciplines import DISCIPLINES
from app.scheduling.planning import Planner
from app.scheduling.queues import ModelQueue
from app.scheduling.request import QueuedRequest

R = TypeVar("R", bound=QueuedRequest)


class Admission:
    """The rules of admission for one configuration; it keeps no state."""

    def __init__(self, config: SchedulerConfig, planner: Planner) -> None:
        discipline = DISCIPLINES[config.discipline]
        self._mode: Literal["off", "floor", "predict"] = config.admission or (
            "predict" if discipline.by_deadline and config.sizing != "value" else "floor"
        )
        self._ahead = discipline.ahead
        self._max_depth = config.max_queue_depth
        self._planner = planner

    def check_depth(self, queue: ModelQueue[R], pieces: int) -> None:
        """Raises `QueueFull`, or `InvalidRequest` for more pieces than any queue takes. Committed ones are exempt."""
        if queue.depth - queue.committed + pieces > self._max_depth:
            if pieces > self._max_depth:
                raise InvalidRequest(
                    f"the request is cut into {pieces} pieces, and the queue of a model takes {self._max_depth}",
                    reason="too_many_rows",
                )
            queue.counters.drops["queue_full"] += 1
            raise QueueFull(f"the queue of model {queue.name!r} is full ({self._max_depth} requests)")

    def check_deadline(
        self,
        queue: ModelQueue[R],
        pieces: Sequence[R],
        due: float,
        now: float,
        *,
        running: float,
        active: Iterable[ModelQueue[R]],
    ) -> None:
        """Raises `DeadlineInfeasible` for what no order could save, or under `predict` what this order will not.

        `pieces` are empty while the request is not decoded; `running` is the rest of the execution in progress.
        """
        if self._mode == "off":
            return
        planner = self._planner
        own, load = planner.own_cost(queue, pieces), planner.load(queue)
        ahead = self._work_ahead(queue, pieces, active, due, own) if self._mode == "predict" else 0.0
        variant = pieces[0].merge_key.variant if pieces else None
        if not feasible(now, due, running=running, load=load, own=own, ahead=ahead) and (
            due <= now or not planner.may_err(queue, variant, now)
        ):
            queue.counters.drops["infeasible_admission"] += 1
            if queue.demand is not None:
                queue.demand.refuse(now)
            raise DeadlineInfeasible(
                f"model {queue.name!r} cannot answer in the {max(due - now, 0.0) * 1e3:.1f} ms that are left: it needs "
                f"{own * 1e3:.1f} ms, after {(running + load + ahead) * 1e3:.1f} ms for what comes first"
            )

    def _work_ahead(
        self, queue: ModelQueue[R], pieces: Sequence[R], active: Iterable[ModelQueue[R]], due: float, cost: float
    ) -> float:
        """Expected seconds of queued work that runs first; committed work always does.

        Of the own queue, what it takes with the request less the `cost` of the request alone: it shares a dispatch with
        others. Of models whose front is more urgent than the own one, which the request rides with, one dispatch.
        """
        backlog = self._planner.backlog
        own = max(backlog(queue, sum([piece.rows for piece in pieces]) or 1) - cost, 0.0)
        others = [other for other in active if other is not queue]
        if self._ahead == "share":
            weights = sum([other.policy.weight for other in others], 0.0)
            work = own * (queue.policy.weight + weights) / queue.policy.weight
            first: list[ModelQueue[R]] = []
        else:
            urgent = min(due, queue.soonest_due())
            first = [each for each in others if self._ahead == "everything" or each.soonest_due() < urgent]
            expected = backlog if self._ahead == "everything" else self._planner.seconds
            work = own + sum([expected(each) for each in first], 0.0)
        return work + sum([backlog(each) * each.committed / each.depth for each in others if each not in first], 0.0)
