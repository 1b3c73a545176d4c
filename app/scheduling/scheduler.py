"""The scheduler: requests go in, decisions come out, time is an argument."""

from collections.abc import Sequence
from math import inf
from typing import Generic, TypeVar

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import ModelNotFound
from app.domain.model import ModelSpec
from app.scheduling.admission import Admission
from app.scheduling.contention import IDLE_SECONDS, Contention
from app.scheduling.deadlines import shed
from app.scheduling.decision import Decision, Dispatch
from app.scheduling.disciplines import DISCIPLINES
from app.scheduling.learning import CostBook, UsageLedger
from app.scheduling.planning import Planner
from app.scheduling.plans import Plan
from app.scheduling.queues import ModelQueue, Weights
from app.scheduling.report import Report
from app.scheduling.request import QueuedRequest
from app.scheduling.residency import load_order
from app.scheduling.retries import RetryBudget, halves
from app.scheduling.stats import DropReason, SchedulerStats, size_class
from app.scheduling.value import NET, ValueRule

__all__ = ["Decision", "Dispatch", "Scheduler"]

R = TypeVar("R", bound=QueuedRequest)


class Scheduler(Generic[R]):
    """Queues, averages and policies of every model. Not thread-safe by design; instants are monotonic seconds.

    With `background_loads` somebody brings the weights of the models `wanted`, which contend once they are there;
    without, whoever executes a dispatch does that first.
    """

    def __init__(self, config: SchedulerConfig, *, background_loads: bool = False, rule: ValueRule = NET) -> None:
        self._config = config
        self._discipline = DISCIPLINES[config.discipline]
        self._costs = CostBook(config.cost_ema_alpha)
        self._ledger = UsageLedger(config.ema_halflife_seconds)
        self._planner = Planner(config, self._costs, rule)
        self._admission = Admission(config, self._planner)
        self._sheds = config.shed == "always" or self._discipline.by_deadline
        self._contention = Contention(config, self._planner, self._ledger, self._sheds, background_loads, rule)
        self._queues: dict[str, ModelQueue[R]] = {}
        self._active: dict[str, ModelQueue[R]] = {}
        """Those with queued requests: a decision looks at no others."""
        self.report = Report(
            self._discipline.name, self._queues, self._active, self._contention, self._costs, self._ledger
        )
        self._soonest_due = inf
        """No queued request is due before; so a decision without deadlines looks for none."""
        self._busy_until = -inf
        """When the execution in progress is expected to end."""

    # ---- models

    def add_model(self, model_id: str, spec: ModelSpec, policy: ModelPolicy) -> None:
        """Take a generation into service. Raises `ValueError` when the id is in use."""
        if model_id in self._queues:
            raise ValueError(f"model id {model_id!r} is in use")
        self._queues[model_id] = ModelQueue(model_id, spec, policy, valued=self._config.sizing == "value")

    def remove_model(self, model_id: str) -> tuple[R, ...]:
        """Forget a generation and return what it had queued. Raises `ModelNotFound`."""
        queue = self._find(model_id)
        orphans = queue.drain()
        del self._queues[model_id]
        self._active.pop(model_id, None)
        self._costs.forget(model_id)
        if all(other.account != queue.account for other in self._queues.values()):
            self._ledger.forget(queue.account)
        return orphans

    def rename_model(self, model_id: str, name: str) -> None:
        """Change the label of a generation; nothing else moves. Raises `ModelNotFound`."""
        self._find(model_id).name = name

    def carry_over(self, old_id: str, new_id: str) -> None:
        """Let a new generation go on with the counters, the device time used and the costs of the old one.

        What is queued stays with the old generation, which is reported as the new one. Raises `ModelNotFound`.
        """
        old, new = self._find(old_id), self._find(new_id)
        self._costs.carry_over(old_id, new_id)
        new.inherit(old)

    def set_policy(self, model_id: str, policy: ModelPolicy) -> None:
        """Change the policy, from the next decision on. Raises `ModelNotFound`."""
        self._find(model_id).adopt(policy)

    def set_weights(self, model_id: str, weights: Weights) -> None:
        """Say where the weights are: `resident`, `loading` in the background, or `cold`. Raises `ModelNotFound`."""
        queue = self._find(model_id)
        queue.weights = weights
        queue.replan()

    def wanted(self, now: float) -> tuple[str, ...]:
        """Models with queued work whose weights are cold, in the order in which a loader should bring them."""
        return load_order([self._planner.wanted(q) for q in self._active.values() if q.weights == "cold"], now)

    def busy(self) -> frozenset[str]:
        """Models with queued work."""
        return frozenset(self._active)

    # ---- requests

    def admit(self, model_id: str, deadline: float, now: float) -> None:
        """Refuse early, before a request is decoded, what `enqueue` would refuse.

        Raises `ModelNotFound`, `QueueFull` or `DeadlineInfeasible`.
        """
        queue = self._find(model_id)
        self._admission.check_depth(queue, 1)
        if deadline < inf:
            self._check_deadline(queue, (), deadline - queue.reserved(deadline, now), now)

    def enqueue(self, requests: Sequence[R], now: float) -> None:
        """Queue a request, or all pieces of a split one, which are alike but for their rows: all or none.

        Raises `ModelNotFound`, `QueueFull`, `DeadlineInfeasible`; `InvalidRequest` for more pieces than a queue takes.
        """
        first = requests[0]
        queue, due = self._find(first.model_id), first.deadline
        if due < inf:
            due -= queue.reserved(due, first.enqueued_at)
        if not first.committed:
            self._admission.check_depth(queue, len(requests))
            if due < inf:
                self._check_deadline(queue, requests, due, now)
        if not queue.depth:
            self._wake(queue, now)
        queue.push(requests, due)
        if due < self._soonest_due:
            self._soonest_due = due

    def withdraw(self, requests: Sequence[R], now: float) -> tuple[R, ...]:
        """Take requests out whose callers are gone; returns those that were still queued."""
        gone = tuple([request for request in dict.fromkeys(requests) if request.queued])
        for request in gone:
            self._drop(self._queues[request.model_id], request, "withdrawn", now)
        return gone

    def drain(self, model_id: str | None = None) -> tuple[R, ...]:
        """Take out everything that is queued, for one model, if it is known, or for all."""
        ids = tuple(self._active) if model_id is None else {model_id} & self._active.keys()
        return tuple([request for each in ids for request in self._active.pop(each).drain()])

    # ---- decisions

    def next_decision(self, now: float) -> Decision[R]:
        """What the device, which is free, does next."""
        self._busy_until = -inf
        expired = self._expire(now) if now >= self._soonest_due else []
        queue, wake_at = self._contention.choose(self._active.values(), now)
        while queue is not None:
            plan = self._planner.plan(queue)
            late = self._shed(queue, plan, now) if self._sheds and not queue.retrying else None
            if not late:
                return Decision(self._take(queue, plan, now), tuple(expired), now)
            expired += late
            if self._planner.aim(queue) is None or not queue.depth:
                queue, wake_at = self._contention.choose(self._active.values(), now)
        return Decision(None, tuple(expired), wake_at)

    def record(self, dispatch: Dispatch[R], seconds: float, now: float, gap: float = 0.0) -> None:
        """Learn what a dispatch cost that ran: `seconds` of compute, weight load excluded. Once per dispatch.

        `gap` are the seconds before it in which the device stood idle although this work waited.
        """
        self._busy_until = -inf
        queue = self._queues.get(dispatch.model_id)
        if queue is None:
            return  # unloaded while it ran
        rows, exact = dispatch.rows, not queue.spec.sizes(dispatch.variant)
        size = size_class(rows) if exact else dispatch.size
        queue.counters.dispatched(len(dispatch.requests), rows, dispatch.size, seconds, exact=exact)
        queue.counters.gaps.observe(gap)
        if queue.demand is not None:
            queue.demand.answer(dispatch.requests, now)
        self._costs.observe(queue.model_id, dispatch.variant, size, seconds, now)
        self._ledger.charge(queue.account, seconds, now)
        queue.replan()
        if dispatch.retry is not None:
            dispatch.retry.left -= seconds

    def fail(self, dispatch: Dispatch[R], seconds: float, now: float) -> None:
        """Book a dispatch that failed: its `seconds` were used all the same, and teach no cost."""
        self._busy_until = -inf
        if queue := self._queues.get(dispatch.model_id):
            self._ledger.charge(queue.account, seconds, now)
        if dispatch.retry is not None:
            dispatch.retry.left -= seconds

    def retry(self, dispatch: Dispatch[R], wanted: Sequence[R], seconds: float, now: float) -> tuple[R, ...]:
        """Run a dispatch that failed with a data error again, in halves, at the head of its queue.

        `wanted` are those of its requests that still await an answer, `seconds` what the failure took: it is charged
        to the model, and teaches no cost. Returns those to be failed now: the culprit, once it stands alone, or all
        of them once the parts have used four times what the dispatch was expected to cost.
        """
        self._busy_until = -inf
        queue = self._queues.get(dispatch.model_id)
        if queue is None:
            return tuple(wanted)
        self.fail(dispatch, seconds, now)
        budget = dispatch.retry
        if budget is None:
            cost = self._costs.estimate(queue.model_id, dispatch.variant, dispatch.size)
            budget = RetryBudget(seconds if cost is None else cost)
        if len(dispatch.requests) == 1 or not wanted or budget.left < 0:
            return tuple(wanted)
        if not queue.depth:
            self._wake(queue, now)
        queue.put_back(halves(wanted, budget))
        self._soonest_due = min(self._soonest_due, queue.soonest_due())
        return ()

    def seed_cost(self, model_id: str, variant: str, size: int, seconds: float, now: float) -> None:
        """Learn a cost from a run that served nobody: the probe at load. Raises `ModelNotFound`."""
        queue = self._find(model_id)
        self._costs.observe(model_id, variant, size, seconds, now)
        queue.replan()

    def record_load(self, model_id: str, seconds: float, now: float) -> None:
        """Learn what bringing the weights took. Raises `ModelNotFound`."""
        queue = self._find(model_id)
        self._costs.observe_load(model_id, seconds, now)
        queue.replan()

    def record_reply(self, model_id: str, seconds: float) -> None:
        """Learn the time from slice to reply of one request: the reserve. Unknown models are ignored."""
        if queue := self._queues.get(model_id):
            queue.reserve.observe(seconds)

    def stats(self, now: float) -> SchedulerStats:
        """A frozen snapshot of everything."""
        return self.report.everything(now)

    # ---- inside

    def _find(self, model_id: str) -> ModelQueue[R]:
        queue = self._queues.get(model_id)
        if queue is None:
            raise ModelNotFound("the model was unloaded")
        return queue

    def _take(self, queue: ModelQueue[R], plan: Plan, now: float) -> Dispatch[R]:
        self._busy_until = now + self._planner.seconds(queue)
        requests, retry = queue.take(plan.take)
        queue.counters.waits.extend([now - request.enqueued_at for request in requests])
        # A queue that waits for company is ready from when that was first seen, any other from its front's arrival.
        since = queue.waiting_since if queue.policy.max_wait_ms else plan.oldest_enqueued_at
        queue.waiting_since = now
        queue.unserved_since = now if queue.depth else inf
        self._rest_if_empty(queue, now)
        return Dispatch(queue.model_id, plan.variant, plan.size, plan.rows, requests, since, retry)

    def _shed(self, queue: ModelQueue[R], plan: Plan, now: float) -> list[R]:
        """Drop from the planned dispatch what it could only answer late."""
        finish_at = self._planner.ends_by(queue, now) if queue.soonest_due() < inf else now
        if queue.soonest_due() > finish_at:
            return []
        _, late = shed(queue.leading(plan.take + (queue.offer.late if queue.offer else 0)), finish_at)
        if late and self._planner.may_err(queue, plan.variant, now, tries=True):
            return []
        for request in late:
            self._drop(queue, request, "infeasible_dispatch", now)
        return late

    def _expire(self, now: float) -> list[R]:
        expired: list[R] = []
        soonest = inf
        for queue in list(self._active.values()):
            for request in queue.due_by(now):
                self._drop(queue, request, "expired_queue", now)
                expired.append(request)
            soonest = min(soonest, queue.soonest_due())
        self._soonest_due = soonest
        return expired

    def _drop(self, queue: ModelQueue[R], request: R, reason: DropReason, now: float) -> None:
        queue.discard(request, reason, now)
        self._rest_if_empty(queue, now)

    def _wake(self, queue: ModelQueue[R], now: float) -> None:
        self._active[queue.model_id] = queue
        queue.credit_pending |= now - queue.idle_since > IDLE_SECONDS

    def _rest_if_empty(self, queue: ModelQueue[R], now: float) -> None:
        if not queue.depth:
            queue.idle_since = now
            queue.waiting_since = inf
            del self._active[queue.model_id]

    def _check_deadline(self, queue: ModelQueue[R], pieces: Sequence[R], due: float, now: float) -> None:
        running, active = max(self._busy_until - now, 0.0), self._contention.present(self._active.values())
        self._admission.check_deadline(queue, pieces, due, now, running=running, active=active)
