"""Which contenders are worth the device now: net value over all models, and who stands back."""

from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from app.domain.config import SchedulerConfig
from app.scheduling.demand import Demand
from app.scheduling.disciplines import DISCIPLINES
from app.scheduling.learning import UsageLedger
from app.scheduling.planning import NO_CHOICE, UNSEEDED_COST, Planner
from app.scheduling.plans import Menu, Offer
from app.scheduling.queues import ModelQueue
from app.scheduling.request import QueuedRequest
from app.scheduling.value import PERIODS, Outlook, Stake, ValueRule, price

R = TypeVar("R", bound=QueuedRequest)

#: So many contenders are valued in one decision; the others stand back.
MOST_VALUED = 5


class _Entry(Stake):
    """A model that is asked for something; what is known of it holds until it changes."""

    __slots__ = ("asked", "bound", "demand", "menu", "missed", "queue")

    def __init__(self, queue: ModelQueue[Any], demand: Demand, now: float, worth: float, reach: float) -> None:
        super().__init__(demand, now, worth, reach)
        self.queue = queue
        self.demand = demand
        self.asked = demand.asked
        self.missed = demand.missed * demand.asked
        self.menu = NO_CHOICE
        self.bound = inf
        """No dispatch of its own is worth more."""

    def choose_from(self, menu: Menu) -> None:
        """Let the queue, which is not empty, be run at what the menu has."""
        self.menu = menu
        self.bound = menu.rates[-1] * self.price * self.queue.depth / self.queue.rows if menu.rates else inf


class Appraisal:
    """Values what the contenders could do, under one configuration."""

    def __init__(self, config: SchedulerConfig, rule: ValueRule, planner: Planner, ledger: UsageLedger) -> None:
        self._rule = rule
        self._planner = planner
        self._ledger = ledger
        self._shares = config.discipline == "fair"
        self._by_deadline = DISCIPLINES[config.discipline].by_deadline
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
        entries = [self._known[queue.model_id] for queue in ready]
        entries.sort(key=attrgetter("bound"), reverse=True)
        if len(entries) <= MOST_VALUED or not self._rule.stand_back:
            return entries
        others = entries[2:]
        if self._by_deadline:
            others.sort(key=lambda entry: (entry.soonest, entry.queue.unserved_since))
        else:
            others.sort(key=lambda entry: (not entry.below_share, entry.queue.unserved_since))
        return entries[:2] + others[: MOST_VALUED - 2]

    def _look(self, ready: Sequence[ModelQueue[R]], now: float) -> Outlook:
        """What every model that is asked for has at stake."""
        known = self._known
        guard = 1.0 + self._rule.guard * self._planner.deviation()
        for queue in ready:
            entry = known.get(queue.model_id)
            if entry is None or entry.queue is not queue:
                known[queue.model_id] = self._entry(queue, now, guard)
        for entry in [e for e in known.values() if e.demand.changed or now >= e.holds_until]:
            if entry.demand.quiet(now):
                del known[entry.queue.model_id]
            else:
                known[entry.queue.model_id] = self._entry(entry.queue, now, guard)
        if self._shares:
            self._tell_shares(ready)
        asked, missed = sum([entry.asked for entry in known.values()]), sum([entry.missed for entry in known.values()])
        skip = max(0.0, 1.0 - missed / (asked * self._rule.misses_free)) if asked else 1.0
        return Outlook(self._rule, known.values(), now, guard=guard, skip=skip)

    def _entry(self, queue: ModelQueue[R], now: float, guard: float) -> _Entry:
        demand = queue.demand
        assert demand is not None
        worth = price(self._rule, queue.policy.value, demand.missed)
        made = _Entry(queue, demand, now, worth, self._planner.shortest(queue, demand) * guard)
        if queue.depth and self._rule.sizes == "net":
            made.choose_from(self._planner.menu(queue, demand))
        return made

    def _tell_shares(self, ready: Sequence[ModelQueue[R]]) -> None:
        standing = self._ledger.standing
        used = [(standing(queue.account), queue.policy.weight, queue.model_id) for queue in ready]
        most = sum([seconds for seconds, _, _ in used]) / sum([weight for _, weight, _ in used])
        for seconds, weight, model_id in used:
            self._known[model_id].below_share = seconds < most * weight

    def _offer(self, entry: _Entry, outlook: Outlook) -> Offer:
        queue, menu, planner = entry.queue, entry.menu, self._planner
        offer = None
        if menu.sizes:
            most = min(menu.most, planner.plan(queue).run_rows) if entry.demand.mixed else menu.most
            load = planner.load(queue) if queue.weights != "resident" else 0.0
            offer = outlook.offer(entry, menu, most, queue.rows / queue.depth, load)
        if offer is None:
            planner.propose(queue, None)
            plan = planner.plan(queue)
            seconds = (UNSEEDED_COST if plan.cost is None else plan.cost) + planner.load(queue)
            offer = outlook.only(entry, plan.take, seconds)
        planner.propose(queue, offer)
        return offer

    def _overdue(self, ready: Sequence[ModelQueue[R]], now: float) -> ModelQueue[R] | None:
        """Who was not served for too long: who waits the longest of those that what they run at now is short for."""
        since = now - self._rule.patience
        late = [queue for queue in ready if queue.waiting_since < since]
        late = [queue for queue in late if now - queue.waiting_since > PERIODS * self._planner.seconds(queue)]
        return min(late, key=lambda queue: queue.waiting_since) if late else None
