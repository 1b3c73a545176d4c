"""The dispatch that the front of a queue would get now, and what its queued work would cost."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf
from typing import TypeVar

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.model import ModelSpec
from app.scheduling.coalescing import Sizing, plan_batch
from app.scheduling.deadlines import release, safe_wait
from app.scheduling.demand import Demand
from app.scheduling.disciplines.fair import LEAST_COST
from app.scheduling.learning import CostBook, CostCurve
from app.scheduling.plans import Menu, Offer, Plan
from app.scheduling.queues import ModelQueue
from app.scheduling.request import QueuedRequest
from app.scheduling.residency import Wanted
from app.scheduling.stats import size_class
from app.scheduling.value import NET, ValueRule

R = TypeVar("R", bound=QueuedRequest)

#: The part of a model's compute time that trying other sizes may take.
EXPLORE_SHARE = 0.1

#: Costs that nobody measured for so long, and for so many times what they say, no longer forbid a dispatch.
TRIAL_SECONDS = 1.0
TRIAL_FACTOR = 20.0

#: So many mean deviations longer than was learned a dispatch may well last.
SCATTER = 2.0

#: What a dispatch is taken to cost, when models are compared, until one was measured.
UNSEEDED_COST = 0.01

#: Where a size is settled already, or a cost unknown.
NO_CHOICE = Menu("", (), (), (), 0)


class Planner:
    """Plans for queues. It owns nothing: costs are the book's, memos the queues'."""

    def __init__(self, config: SchedulerConfig, costs: CostBook, rule: ValueRule = NET) -> None:
        self._sizing: Sizing = "fill" if config.sizing == "value" and rule.sizes == "fill" else config.sizing
        self._guard = rule.guard if config.sizing == "value" and rule.sizes != "fill" else None
        self._costs = costs

    def plan(self, queue: ModelQueue[R]) -> Plan:
        """What a non-empty queue would dispatch now. The memo holds until the queue, a cost or the policy changes."""
        if queue.plan is None:
            queue.plan = self._plan(queue)
        return queue.plan

    def propose(self, queue: ModelQueue[R], offer: Offer | None) -> None:
        """Let the next plan aim at the size of an offer, or at none."""
        old = queue.offer
        if (None if old is None else old.size) != (None if offer is None else offer.size):
            queue.plan = None
        queue.offer = offer

    def aim(self, queue: ModelQueue[R]) -> int | None:
        """The compiled size that value asks for."""
        return None if queue.offer is None else queue.offer.size

    def load(self, queue: ModelQueue[R]) -> float:
        """Expected seconds of weight load that a dispatch pays first."""
        return self._costs.estimate_load(queue.model_id) if queue.weights != "resident" else 0.0

    def seconds(self, queue: ModelQueue[R]) -> float:
        """Expected seconds on the device of the planned dispatch, weight load included; 0 while nothing is known."""
        return self.load(queue) + (self.plan(queue).cost or 0.0)

    def ends_by(self, queue: ModelQueue[R], now: float) -> float:
        """When the planned dispatch of a non-empty queue will have ended.

        Where value decides it is given as long as it was valued at. Elsewhere, where more is queued than can be done in
        time, somebody is lost: rather one for whom it would be tight, since a dispatch that lasts longer than was
        learned loses all of those. So it is then given longer, provided that others could fill it for whom it is not.
        """
        ends_at, plan = now + self.seconds(queue), self.plan(queue)
        if self._guard is not None:
            return ends_at + self._guard * self.deviation() * (plan.cost or 0.0)
        if queue.depth < 2 * plan.take:
            return ends_at
        longer = ends_at + SCATTER * self.deviation() * (plan.cost or 0.0)
        crowded = longer < queue.latest_due() < now + self.load(queue) + self.backlog(queue)
        return longer if crowded else ends_at

    def deviation(self) -> float:
        """By which part of the estimate executions differ from it, on average."""
        return self._costs.deviation

    def wanted(self, queue: ModelQueue[R]) -> Wanted:
        """What bringing the weights of a non-empty queue would be for."""
        load = self._costs.estimate_load(queue.model_id)
        return Wanted(queue.model_id, queue.rows, queue.unserved_since, load, queue.committed > 0)

    def opens_at(self, queue: ModelQueue[R], now: float) -> float:
        """The instant until which the queue waits for company; `now` when it is releasable."""
        plan = self.plan(queue)
        if plan.closed or queue.committed:
            return now
        curve = self._costs.curve(queue.model_id, plan.variant)
        size, rows = self._usable(queue, queue.front(), curve)
        wait = safe_wait(
            queue.policy.max_wait_ms / 1e3,
            oldest_arrival=plan.oldest_enqueued_at,
            tightest_due=queue.soonest_due(),
            load=self.load(queue),
            cost=curve.seconds.get(size, 0.0),
        )
        arrival = plan.oldest_enqueued_at
        # The expired have left the queue already, so the rule is not given their deadline.
        state = release(plan.run_rows, arrival, inf, now, max_size=rows, max_wait=wait, reserve=0.0)
        return arrival + wait if state == "wait" else now

    def backlog(self, queue: ModelQueue[R], more: int = 0) -> float:
        """Expected seconds of everything queued and `more` rows, as if all were like the front; 0 while unknown.

        What comes more rides along where there is room: it does not wait for a dispatch of its own.
        """
        if not queue.depth:
            return 0.0
        front = queue.front()
        variant = front.merge_key.variant
        curve = self._costs.curve(queue.model_id, variant)
        if not queue.spec.sizes(variant):
            return (queue.depth + bool(more)) * curve.seconds.get(size_class(front.rows), 0.0)
        size, rows = self._usable(queue, front, curve)
        full, rest = divmod(queue.rows + more, rows)
        return full * curve.seconds.get(size, 0.0) + (curve.least(rest) if rest else 0.0)

    def own_cost(self, queue: ModelQueue[R], pieces: Sequence[QueuedRequest]) -> float:
        """The least seconds that these pieces, or any request if there are none, can take; 0 while nothing is known."""
        if not pieces:
            return min([curve.least(1) for curve in self._costs.curves(queue.model_id)], default=0.0)
        return sum([self._least(queue, piece) for piece in pieces], 0.0)

    def menu(self, queue: ModelQueue[R], demand: Demand) -> Menu:
        """What the front of a non-empty queue could be run at, where value decides."""
        front = queue.front()
        variant = front.merge_key.variant
        if demand.menu is None or demand.menu.variant != variant:
            demand.menu = self._menu(queue, variant)
        return NO_CHOICE if front.rows > demand.menu.most or queue.retrying else demand.menu

    def trial(self, queue: ModelQueue[R], menu: Menu, rows: int) -> Menu | None:
        """The size alone that this dispatch, for which so many rows are there, is to try; None where it tries none."""
        curve = self._costs.curve(queue.model_id, menu.variant)
        size = self._explored(queue, curve, menu.sizes, queue.front().rows, rows)
        if size is None:
            return None
        place = menu.sizes.index(size)
        return menu._replace(sizes=(size,), seconds=(menu.seconds[place],), rates=(menu.rates[place],))

    def shortest(self, queue: ModelQueue[R], demand: Demand) -> float:
        """Expected seconds of the shortest dispatch, weight load included; 0 while nothing is known."""
        if demand.shortest is None:
            demand.shortest = self.own_cost(queue, ())
        return demand.shortest + self.load(queue)

    def may_err(self, queue: ModelQueue[R], variant: str | None, now: float, *, tries: bool = False) -> bool:
        """Whether the learned costs are so old that they may forbid nothing; of any variant where it is unknown.

        Whoever `tries` what they would forbid does so once.

        What is never run is never measured: one bad estimate would shut a model for good. The heavier a model, the
        rarer the trial, so that one which truly is too slow wastes little.
        """
        curves = self._costs.curves(queue.model_id)
        if variant is not None:
            curves = (self._costs.curve(queue.model_id, variant),)
        looked_at = max(min([curve.latest for curve in curves], default=-inf), queue.tried_at)
        if now - looked_at <= TRIAL_SECONDS or looked_at == -inf:
            return False
        dearest = max([max(curve.seconds.values(), default=0.0) for curve in curves])
        errs = now - looked_at > TRIAL_FACTOR * (dearest + self.load(queue))
        if errs and tries:
            queue.tried_at = now
        return errs

    def _menu(self, queue: ModelQueue[R], variant: str) -> Menu:
        sizes = queue.spec.sizes(variant)
        nothing = Menu(variant, (), (), (), 0)
        if not sizes or queue.policy.sizing is not None:
            return nothing
        cap = merge_cap(queue.spec, queue.policy)
        most = sizes[-1] if cap is None else min(cap, sizes[-1])
        known = self._costs.curve(queue.model_id, variant).seconds
        seconds: list[float] = []
        rates: list[float] = []
        best = 0.0
        for size in sizes:
            cost = known.get(size)
            if cost is None:
                return nothing
            cost = cost if cost > LEAST_COST else LEAST_COST
            rate = (size if size < most else most) / cost
            best = rate if rate > best else best
            seconds.append(cost)
            rates.append(best)
        return Menu(variant, sizes, tuple(seconds), tuple(rates), most)

    def _least(self, queue: ModelQueue[R], piece: QueuedRequest) -> float:
        variant = piece.merge_key.variant
        curve = self._costs.curve(queue.model_id, variant)
        if queue.spec.sizes(variant):
            return curve.least(piece.rows)
        return curve.seconds.get(size_class(piece.rows), 0.0)

    def _timely(self, queue: ModelQueue[R], front: R, curve: CostCurve) -> tuple[int, ...]:
        """The compiled sizes that do not take longer than the front request was given."""
        sizes = queue.spec.sizes(front.merge_key.variant)
        if front.due == inf or not sizes:
            return sizes
        return timely_sizes(sizes, curve.seconds, front.rows, front.due - front.enqueued_at - self.load(queue))

    def _usable(self, queue: ModelQueue[R], front: R, curve: CostCurve) -> tuple[int, int]:
        sizes = self._timely(queue, front, curve)
        key = (front.merge_key.variant, sizes[-1])
        usable = queue.usable.get(key)
        if usable is None:
            cap = merge_cap(queue.spec, queue.policy)
            usable = queue.usable[key] = usable_size(sizes, cap, curve.seconds, self._sizing_of(queue))
        return usable

    def _plan(self, queue: ModelQueue[R]) -> Plan:
        front = queue.front()
        variant = front.merge_key.variant
        curve = self._costs.curve(queue.model_id, variant)
        sizes = queue.spec.sizes(variant)
        if not sizes:
            cost = curve.seconds.get(size_class(front.rows))
            return Plan(variant, 1, front.rows, front.rows, cost, front.enqueued_at, front.rows, True, front.place)
        if queue.retrying:
            rows, _, last = queue.leading_rows(0)
            total = sum(rows)
            size = sizes[bisect_left(sizes, total)]
            return Plan(variant, len(rows), size, total, curve.seconds.get(size), front.enqueued_at, total, True, last)
        aim = self.aim(queue)
        if aim is None:
            sizes = self._timely(queue, front, curve)
        cap = merge_cap(queue.spec, queue.policy)
        room = sizes[-1] if cap is None else min(cap, sizes[-1])
        rows, closed, last = queue.leading_rows(room)
        last = inf if queue.committed else last  # those come first, whatever their place
        total = sum(rows)
        sizing = self._sizing_of(queue)
        if sizing == "cost":
            aim = self._explored(queue, curve, sizes, rows[0], min(total, room))
        batch = plan_batch(rows, sizes, cap=cap, sizing=sizing, cost=curve.seconds.get, chosen=aim)
        cost = curve.seconds.get(batch.size)
        return Plan(variant, batch.take, batch.size, batch.rows, cost, front.enqueued_at, total, closed, last)

    def _explored(
        self, queue: ModelQueue[R], curve: CostCurve, sizes: Sequence[int], front: int, available: int
    ) -> int | None:
        """On every 64th dispatch, the least recently measured size that the rows fill and that holds the front.

        A dear one has its turn once the others have worked enough to pay for it.
        """
        counters = queue.counters
        if not counters.explores:
            return None
        allowance = EXPLORE_SHARE * counters.compute_seconds - counters.explored_seconds
        filled = [size for size in sizes if front <= size <= available and curve.seconds.get(size, 0.0) <= allowance]
        return curve.stalest(filled) if filled else None

    def _sizing_of(self, queue: ModelQueue[R]) -> Sizing:
        return queue.policy.sizing or self._sizing


def merge_cap(spec: ModelSpec, policy: ModelPolicy) -> int | None:
    """The most rows merged into one dispatch; None without a bound below the compiled sizes."""
    if spec.max_batch_size is None or policy.max_batch_size is None:
        return spec.max_batch_size or policy.max_batch_size
    return min(spec.max_batch_size, policy.max_batch_size)


def usable_size(sizes: tuple[int, ...], cap: int | None, costs: Mapping[int, float], sizing: Sizing) -> tuple[int, int]:
    """(compiled size, real rows in it) that a queue without end would be served in."""
    if cap is not None:
        sizes = sizes[: bisect_left(sizes, cap) + 1]  # a larger one holds no more
    filled = [(size, size if cap is None else min(size, cap)) for size in sizes]
    if sizing != "fill" and all(size in costs for size in sizes):
        return min(filled, key=lambda pair: (costs[pair[0]] / pair[1], -pair[0]))
    return filled[-1]


def timely_sizes(sizes: tuple[int, ...], costs: Mapping[int, float], front: int, budget: float) -> tuple[int, ...]:
    """The sizes below the first that takes longer than the front request was given from the start.

    However cheap per row, such a size answers nobody in time: a burst would be lost batch by batch. One that holds
    the front is always left.
    """
    for index in range(bisect_left(sizes, front) + 1, len(sizes)):
        if costs.get(sizes[index], 0.0) >= budget:
            return sizes[:index]
    return sizes
