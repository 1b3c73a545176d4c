"""Which contenders are worth the device now: net value over all models, and who stands back."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from app.domain.config import SchedulerConfig
from app.scheduling.demand import Demand
from app.scheduling.disciplines import DISCIPLINES
from app.scheduling.learning import UsageLedger
from app.scheduling.planning import NO_CHOICE, UNSEEDED_COST, Planner
from app.scheduling.plans import Offer
from app.scheduling.queues import ModelQueue
from app.scheduling.request import QueuedRequest
from app.scheduling.value import PERIODS, Outlook, Stake, ValueRule, dearest, price

R = TypeVar("R", bound=QueuedRequest)

#: So many contenders are valued in one decision; the others stand back.
MOST_VALUED = 5

_BOUND, _UNSERVED = attrgetter("bound"), attrgetter("queue.unserved_since")
_SOONEST = attrgetter("soonest", "queue.unserved_since")


class _Entry(Stake):
    """A model that is asked for something; what is known of it holds until it changes."""

    __slots__ = ("asked", "bound", "demand", "each", "lost", "menu", "missed", "queue", "wanted")

    def __init__(self, queue: ModelQueue[Any], demand: Demand) -> None:
        super().__init__(demand)
        self.queue = queue
        self.demand = demand
        self.asked = self.missed = 0.0
        self.each = 0.0
        """The least seconds that one of its requests takes of the device."""
        self.wanted = self.lost = 0.0
        """What was asked of it, and what was missed, in such seconds."""
        self.menu = NO_CHOICE
        self.bound = inf
        """No dispatch of its own is worth more."""


class Appraisal:
    """Values what the contenders could do, under one configuration."""

    def __init__(self, config: SchedulerConfig, rule: ValueRule, planner: Planner, ledger: UsageLedger) -> None:
        self._rule = rule
        self._planner = planner
        self._ledger = ledger
        self._shares = config.discipline == "fair"
        self._by_deadline = DISCIPLINES[config.discipline].by_deadline
        self._most = 0.0
        """The part of its requests that a contender missed of late, at the most."""
        self._dearest = dearest(rule, 0.0)
        """By how much prices rise at the most, by what was missed of late."""
        self._known: dict[str, _Entry] = {}
        """The models that were asked for something of late."""

    def worthwhile(self, ready: Sequence[ModelQueue[R]], now: float) -> Sequence[ModelQueue[R]]:
        """The contenders that do not stand back, each with the best that it has to offer; the one that is overdue."""
        outlook = self._look(ready, now)
        overdue = self._overdue(ready, now)
        entries = self._eligible([overdue] if overdue is not None else ready)
        part = self._rule.stand_back
        best, offers = 0.0, []
        for entry in entries:
            if entry.bound < part * best and not entry.below_share:
                continue
            offer = self._offer(entry, outlook)
            best = max(best, offer.value)
            offers.append((entry, offer))
        least = part * best if best > 0.0 else max([offer.value for _, offer in offers])
        return [e.queue for e, offer in offers if not part or offer.value >= least or e.below_share]

    def _eligible(self, ready: Sequence[ModelQueue[R]]) -> list[_Entry]:
        """Those to be valued, the most promising first: of many, the best two, and the most urgent of the others."""
        known = self._known
        entries = [known[queue.model_id] for queue in ready]
        entries.sort(key=_BOUND, reverse=True)
        if len(entries) <= MOST_VALUED or not self._rule.stand_back:
            return entries
        others = entries[2:]
        if self._by_deadline:
            others.sort(key=_SOONEST)
        else:
            others.sort(key=_UNSERVED)
            below = [entry for entry in others if entry.below_share]
            others = below + [entry for entry in others if not entry.below_share]
        return entries[:2] + others[: MOST_VALUED - 2]

    def _look(self, ready: Sequence[ModelQueue[R]], now: float) -> Outlook:
        """What every model that is asked for has at stake."""
        known = self._known
        self._meet(ready)
        guard = 1.0 + self._rule.guard * self._planner.deviation()
        asked = missed = wanted = lost = most = 0.0
        quiet = []
        for name, entry in known.items():
            if entry.demand.changed or now >= entry.holds_until:
                if entry.demand.quiet(now):
                    quiet.append(name)
                    continue
                self._renew(entry, now, guard)
            asked += entry.asked
            missed += entry.missed
            wanted += entry.wanted
            lost += entry.lost
            if entry.soonest < inf and entry.missed > most * entry.asked:
                most = entry.missed / entry.asked
        self._most = most
        self._dearest = dearest(self._rule, lost / wanted if wanted else 0.0)
        for name in quiet:
            del known[name]
        if self._shares:
            self._tell_shares(ready)
        skip = max(0.0, 1.0 - missed / (asked * self._rule.misses_free)) if asked else 1.0
        return Outlook(self._rule, known.values(), now, guard=guard, skip=skip)

    def _meet(self, ready: Sequence[ModelQueue[R]]) -> None:
        known = self._known
        for queue in ready:
            entry = known.get(queue.model_id)
            if entry is None or entry.queue is not queue:
                assert queue.demand is not None
                known[queue.model_id] = _Entry(queue, queue.demand)

    def _renew(self, entry: _Entry, now: float, guard: float) -> None:
        queue, demand = entry.queue, entry.demand
        missed = demand.missed
        entry.asked = demand.asked
        entry.missed = missed * entry.asked
        worth = price(self._rule, queue.policy.value, missed, self._most, self._dearest)
        reach = self._planner.shortest(queue, demand) * guard
        entry.renew(demand, now, worth, reach)
        entry.menu, entry.bound = NO_CHOICE, inf
        if queue.depth:
            entry.each = reach
            if self._rule.sizes == "net":
                entry.menu = menu = self._planner.menu(queue, demand)
                if menu.rates:
                    entry.each = queue.rows / queue.depth / menu.rates[-1]
                    entry.bound = worth / entry.each
        entry.wanted = entry.asked * entry.each
        entry.lost = missed * entry.wanted

    def _tell_shares(self, ready: Sequence[ModelQueue[R]]) -> None:
        used = self._ledger.standings([queue.account for queue in ready])
        weights = [queue.policy.weight for queue in ready]
        most = sum(used, 0.0) / sum(weights, 0.0)
        for queue, seconds, weight in zip(ready, used, weights, strict=True):
            self._known[queue.model_id].below_share = seconds < most * weight

    def _offer(self, entry: _Entry, outlook: Outlook) -> Offer:
        queue, menu, planner = entry.queue, entry.menu, self._planner
        offer = None
        if menu.sizes:
            most = min(menu.most, sum(queue.leading_rows(menu.most)[0])) if entry.demand.mixed else menu.most
            load = planner.load(queue) if queue.weights != "resident" else 0.0
            each = queue.rows / queue.depth
            offer = outlook.offer(entry, menu, most, each, load)
            if queue.counters.explores and offer is not None:
                tried = planner.trial(queue, menu, min(most, queue.rows))
                other = None if tried is None else outlook.offer(entry, tried, most, each, load)
                if other is not None and other.value > self._rule.stand_back * max(offer.value, 0.0):
                    offer = other  # what would make many others late is not worth what it teaches
        if offer is None:
            planner.propose(queue, None)
            plan = planner.plan(queue)
            seconds = (UNSEEDED_COST if plan.cost is None else plan.cost) + planner.load(queue)
            offer = outlook.only(entry, plan.take, seconds)
        planner.propose(queue, offer)
        return offer

    def _overdue(self, ready: Sequence[ModelQueue[R]], now: float) -> ModelQueue[R] | None:
        """Who was not served for too long: who waits the longest of those that it is long for, by what they run."""
        since = now - self._rule.patience
        late = [queue for queue in ready if queue.waiting_since < since]
        late = [queue for queue in late if now - queue.waiting_since > PERIODS * self._longest(queue)]
        return min(late, key=lambda queue: queue.waiting_since) if late else None

    def _longest(self, queue: ModelQueue[R]) -> float:
        """Expected seconds of a dispatch of all that is queued, or as much as one holds, weight load included."""
        menu, planner = self._known[queue.model_id].menu, self._planner
        if not menu.sizes:
            return planner.seconds(queue)
        place = bisect_left(menu.sizes, min(queue.rows, menu.most))
        return menu.seconds[place] + planner.load(queue)
