"""The queue of one model: two FIFOs whose requests leave in place, and what is planned for their front."""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, Literal, TypeVar

from app.domain.config import ModelPolicy
from app.domain.model import MergeKey, ModelSpec
from app.scheduling.demand import Demand
from app.scheduling.learning import LearnedReserve
from app.scheduling.plans import Offer, Plan
from app.scheduling.request import QueuedRequest
from app.scheduling.retries import Retry, RetryBudget
from app.scheduling.stats import Counters, DropReason

R = TypeVar("R", bound=QueuedRequest)

#: Where the weights are: on the device; on their way there in the background, which keeps the model from contending;
#: or elsewhere, for a dispatch to load them first, or for a background load to begin.
Weights = Literal["resident", "loading", "cold"]

#: Entries of requests that are gone are tolerated up to this many beyond the live ones.
SLACK = 64


class ModelQueue(Generic[R]):
    """Requests of one model, in order of arrival. A request that leaves from the middle is only marked.

    Marked requests (`queued` False) are skipped, and swept once they outnumber the live ones.
    """

    __slots__ = (
        "_committed", "_due", "_ordinary", "_retries", "account", "committed", "counters", "credit_pending", "demand",
        "depth", "heir", "idle_since", "model_id", "name", "offer", "plan", "policy", "reserve", "rows", "spec",
        "ticket", "tried_at", "unserved_since", "usable", "waiting_since", "weights",
    )  # fmt: skip

    def __init__(self, model_id: str, spec: ModelSpec, policy: ModelPolicy, *, valued: bool = False) -> None:
        self.model_id = model_id
        self.name = spec.name
        self.spec = spec
        self.policy = policy
        self.weights: Weights = "resident"
        self.counters = Counters()
        self.account = model_id
        """The account of the usage ledger; a new generation goes on with that of the old one."""
        self.reserve = LearnedReserve()
        self.heir: str | None = None
        """The generation that replaced this one and reports its counters."""
        self.plan: Plan | None = None
        """The planner's memo, as is `usable`: (size, rows) in which an endless queue would be served, by variant and
        largest size that is in time."""
        self.usable: dict[tuple[str, int], tuple[int, int]] = {}
        self.demand = Demand() if valued else None
        """None where value does not decide; nor are there offers then."""
        self.offer: Offer | None = None
        self.depth = 0
        self.committed = 0
        """How many of `depth` are committed."""
        self.rows = 0
        self.idle_since = -inf
        self.waiting_since = inf
        """When it began to contend, or was last served while it did; infinite while it does not."""
        self.unserved_since = inf
        """When it was last served, if that left work, or else when the first request since then came; drops are no
        service. Infinite while nothing came."""
        self.credit_pending = False
        """Woke from idleness and has not met another contender since."""
        self.tried_at = -inf
        """When a dispatch last ran although its cost seemed to forbid it."""
        self.ticket = 0
        self._committed: deque[R] = deque()
        self._ordinary: deque[R] = deque()
        self._retries: deque[Retry[R]] = deque()
        self._due: list[tuple[float, int, R]] = []

    def inherit(self, old: "ModelQueue[R]") -> None:
        """Go on as a new generation of the same model; what is still queued stays with the old one."""
        self.counters, self.account, self.reserve = old.counters, old.account, old.reserve
        self.idle_since = inf if old.depth else old.idle_since
        if self.demand is not None and old.demand is not None:
            self.demand.inherit(old.demand)
        old.heir = self.model_id
        self.replan()

    def adopt(self, policy: ModelPolicy) -> None:
        """Take on another policy, from the next plan on."""
        self.policy = policy
        self.replan()

    def replan(self) -> None:
        """Forget the memos: a cost or the policy changed."""
        self.plan = None
        self.usable.clear()
        if self.demand is not None:
            self.demand.forget()

    def push(self, requests: Sequence[R], due: float) -> None:
        """Append; all are `due` at the same instant, infinite where they have no deadline."""
        if not self.depth:
            self.unserved_since = min(self.unserved_since, requests[0].enqueued_at)
        for request in requests:
            request.queued = True
            request.place = self.ticket = self.ticket + 1
            if due < inf:
                request.due = due
                self._watch(request)
            if self.demand is not None:
                self.demand.arrive(request)
            self.rows += request.rows
            if request.committed:
                self.committed += 1
                self._committed.append(request)
                self.plan = None
            else:
                self._ordinary.append(request)
        self.depth += len(requests)
        if self.plan is not None and not self.plan.closed:
            self.plan = None

    def put_back(self, parts: Sequence[Retry[R]]) -> None:
        """Put the parts of a failed dispatch before everything else, each to be run on its own."""
        for retry in reversed(parts):
            self._retries.appendleft(retry)
            for request in retry.requests:
                request.queued = True
                self.depth += 1
                self.committed += request.committed
                self.rows += request.rows
                if request.due < inf:
                    self._watch(request)
                if self.demand is not None:
                    self.demand.enter(request)
        self.plan = None

    def discard(self, request: R, reason: DropReason, now: float) -> None:
        """Mark one queued request as gone, and count it."""
        self.counters.drops[reason] += 1
        request.queued = False
        self.depth -= 1
        self.committed -= request.committed
        self.rows -= request.rows
        if self.demand is not None:
            self.demand.drop(request, now, late=reason == "infeasible_dispatch")
        plan = self.plan
        if plan is not None and not (plan.closed and request.place > plan.last):
            self.plan = None
        self._sweep()

    def take(self, count: int) -> tuple[tuple[R, ...], RetryBudget | None]:
        """Remove the first `count` requests: (they, the budget of a retry or None)."""
        if retry := self._next_retry():
            self._retries.popleft()
            taken, budget = [each for each in retry.requests if each.queued], retry.budget
        else:
            taken = _pop(self._committed, count) if self._committed else []
            if len(taken) < count:
                taken += _pop(self._ordinary, count - len(taken))
            budget = None
        for request in taken:
            request.queued = False
        self.rows -= sum([request.rows for request in taken])
        if self.committed:
            self.committed -= sum([request.committed for request in taken])
        if self.demand is not None:
            self.demand.start(taken)
        self.depth -= len(taken)
        self.plan = None
        self._sweep()
        return tuple(taken), budget

    def drain(self) -> tuple[R, ...]:
        """Remove everything."""
        left = [each for retry in self._retries for each in retry.requests if each.queued]
        left += [each for part in (self._committed, self._ordinary) for each in part if each.queued]
        for request in left:
            request.queued = False
        if self.demand is not None:
            self.demand.clear()
        self.depth = self.committed = self.rows = 0
        self.waiting_since = inf
        self.plan = None
        self._sweep()
        return tuple(left)

    def due_by(self, now: float) -> Iterator[R]:
        """Those with `due <= now`, which the caller must discard one by one."""
        while self.soonest_due() <= now:
            yield self._due[0][2]

    def soonest_due(self) -> float:
        """The most urgent due instant in the queue; infinite without deadlines."""
        due = self._due
        while due and not due[0][2].queued:
            heappop(due)
        return due[0][0] if due else inf

    def latest_due(self) -> float:
        """When the ordinary request that came last is due, if it is still there or not; infinite where none is."""
        return self._ordinary[-1].due if self._ordinary else inf

    def front(self) -> R:
        """The request that is served first; the queue must not be empty."""
        if retry := self._next_retry():
            return next(each for each in retry.requests if each.queued)
        for part in (self._committed, self._ordinary):
            while part and not part[0].queued:
                part.popleft()
            if part:
                return part[0]
        raise IndexError(f"the queue of {self.name!r} is empty")

    def leading(self, count: int) -> list[R]:
        """The first `count` requests, in place."""
        if retry := self._next_retry():
            return [each for each in retry.requests if each.queued]
        found: list[R] = []
        for part in (self._committed, self._ordinary):
            for request in part:
                if len(found) == count:
                    return found
                if request.queued:
                    found.append(request)
        return found

    def leading_rows(self, most: int) -> tuple[list[int], bool, float]:
        """Row counts of the leading run with the front's merge key, up to a sum of `most`; whether it is closed; the
        place of the last request looked at.

        It is closed when no later ordinary arrival could join it: it holds `most` rows, or another key follows.
        """
        if retry := self._next_retry():
            return [each.rows for each in retry.requests if each.queued], True, inf
        key: MergeKey | None = None
        rows: list[int] = []
        total = last = 0
        for part in (self._committed, self._ordinary):
            for request in part:
                if not request.queued:
                    continue
                last = request.place
                if key is None:
                    key = request.merge_key
                elif request.merge_key is not key and request.merge_key != key:
                    return rows, True, last
                rows.append(request.rows)
                total += request.rows
                if total >= most:
                    return rows, True, last
        return rows, False, last

    def reserved(self, deadline: float, arrival: float) -> float:
        """Seconds of a deadline kept back for what follows the queue; what is learned takes a quarter at most."""
        if self.policy.reserve_ms is not None:
            return self.policy.reserve_ms / 1e3
        return max(min(self.reserve.seconds, (deadline - arrival) / 4), 0.0)

    @property
    def retrying(self) -> bool:
        """Whether a part of a failed dispatch is at the front."""
        return self._next_retry() is not None

    def _next_retry(self) -> Retry[R] | None:
        while self._retries:
            retry = self._retries[0]
            if any(each.queued for each in retry.requests):
                return retry
            self._retries.popleft()
        return None

    def _watch(self, request: R) -> None:
        heappush(self._due, (request.due, request.place, request))  # instants may be equal, requests have no order

    def _sweep(self) -> None:
        if not self.depth:
            for part in (self._committed, self._ordinary, self._retries, self._due):
                part.clear()
            return
        most = 2 * self.depth + SLACK
        if len(self._ordinary) + len(self._committed) > most:
            self._ordinary = deque(each for each in self._ordinary if each.queued)
            self._committed = deque(each for each in self._committed if each.queued)
        if len(self._due) > most:
            self._due = [entry for entry in self._due if entry[2].queued]
            heapify(self._due)


def _pop(part: deque[R], count: int) -> list[R]:
    """Pop up to `count` queued requests, and the marked ones before them."""
    popped: list[R] = []
    popleft = part.popleft
    while part and len(popped) < count:
        request = popleft()
        if request.queued:
            popped.append(request)
    return popped
