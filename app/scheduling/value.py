"""Net value: what a dispatch answers in time, less what it makes others miss, per second of the device."""

from bisect import bisect_left
from collections.abc import Iterable
from math import exp, inf, log
from typing import Literal, NamedTuple

from app.scheduling.demand import Demand
from app.scheduling.disciplines.fair import LEAST_COST
from app.scheduling.plans import Menu, Offer


class ValueRule(NamedTuple):
    """The parameters of the rule. With those of `AS_FILL` it is `sizing: fill`, decision for decision."""

    sizes: Literal["net", "fill"] = "net"
    """Which compiled sizes are compared: all, or the one alone that `fill` would take."""
    ahead: float = 0.8
    """How much the requests count that a dispatch makes late, against those that it answers."""
    stand_back: float = 0.2
    """Models whose best dispatch is worth less than this part of the best one stand back."""
    guard: float = 1.0
    """By how many mean deviations of costs a dispatch is taken to last longer than was learned."""
    misses_free: float = 0.1
    """Where this part of all requests is missed, skipping one's own late fronts costs nothing any more."""
    rise: float = 0.03
    """The price of a model's requests rises e-fold with each such part of them that it misses."""
    calm: float = 2.0
    """The most that a price rises while the device misses little of what it is asked for."""
    dearest: float = 4.0
    """The most that a price rises, however much the device misses; 1 for prices that do not."""
    misses_dear: float = 0.2
    """Where this part of the device time asked for is missed, prices rise up to the dearest; to less in proportion."""
    protect: float = 4.0
    """By what a model below its share is dearer to one above it, under `fair`."""
    patience: float = 1.0
    """Seconds after which a contender that was not served is served next, if its dispatch takes a twentieth of that."""
    latest_start: bool = True
    """Whether `edf` orders by when a dispatch must begin, instead of by when it is due."""


NET = ValueRule()

#: Nothing is looked at but what `fill` would do.
AS_FILL = ValueRule("fill", ahead=0.0, stand_back=0.0, patience=inf, latest_start=False)

#: So many models are looked at that lose first when another runs; what follows would hardly matter.
MOST_URGENT = 6

#: Rates fade, but for so many seconds they are taken as they were.
RATE_HOLDS = 0.1

#: A contender is overdue after so many times what its dispatch takes, however long that is.
PERIODS = 20.0


def dearest(rule: ValueRule, part: float) -> float:
    """The most that prices rise where this part of the device time that was asked for was missed of late.

    Whom bursts make miss some needs no more than the calm price. A device that is asked for more than it can give has
    to give somebody up, and lest it be a dear model for all of the time, that takes as much as the dearest.
    """
    return min(max(rule.calm, rule.dearest * part / rule.misses_dear), rule.dearest)


def price(rule: ValueRule, value: float, missed: float, most: float, limit: float) -> float:
    """What one answer in time is worth: `value`, and the more, the larger the part is that the model `missed` of late.

    `most` is that part for the contender that missed the most. Where it would be more than `limit` times as dear, all
    prices are so much lower, none below the value: who misses a little less stays a little cheaper, and what costs the
    device little, and so misses little, is not given up for the dearest.
    """
    highest = max(most, missed)  # `most` is of the last look
    folds = missed / rule.rise - max(highest / rule.rise - log(limit), 0.0)
    return value * exp(folds) if folds > 0.0 else value


class Stake:
    """What one model has queued, and can lose while another runs. Seconds; made once, and `renew`ed when it changed."""

    __slots__ = ("below_share", "budget", "coming", "dues", "gone", "holds_until", "price", "reach", "soonest")

    def __init__(self, demand: Demand) -> None:
        self.dues = demand.dues
        self.reach = 0.0
        """What its shortest dispatch takes: what is due sooner after an execution is lost."""
        self.price = self.coming = 0.0
        self.budget = inf
        """An execution that is longer loses some of those that are to come."""
        self.gone = 0
        """How many of the queued are lost already."""
        self.soonest = inf
        """The instant at which another is lost, and until which this holds if nothing else happens."""
        self.holds_until = -inf
        self.below_share = False

    def renew(self, demand: Demand, now: float, price: float, reach: float) -> None:
        """Look at what was asked of the model anew."""
        dues = self.dues
        self.reach = reach
        self.price = price
        self.coming = demand.rate(now) * price
        self.budget = demand.budget - reach
        self.gone = gone = bisect_left(dues, now + reach) if dues else 0
        self.soonest = soonest = dues[gone] - reach if gone < len(dues) else inf
        self.below_share = False
        self.holds_until = soonest if soonest < now + RATE_HOLDS else now + RATE_HOLDS
        demand.watched, demand.changed = gone, False


class Outlook:
    """What is at stake at one instant, by which dispatches are valued."""

    def __init__(self, rule: ValueRule, stakes: Iterable[Stake], now: float, *, guard: float, skip: float) -> None:
        self._rule = rule
        self._now = now
        self._guard = guard
        self._skip = skip
        urgency = []
        for place, stake in enumerate(stakes):
            first = stake.soonest - now
            urgency.append((first if first < stake.budget else stake.budget, place, stake))
        urgency.sort()
        self._urgent = [(first, stake) for first, _, stake in urgency[:MOST_URGENT]]
        """Whom an execution of more than so many seconds costs something; the most urgent first."""

    def offer(self, stake: Stake, menu: Menu, most: int, each: float, load: float) -> Offer | None:
        """The best dispatch of a model: at one of the sizes of its menu, of `most` rows, requests having `each` rows.

        What counts are requests, not rows, as if all were as large; None where none could be answered in time.
        """
        now, dues, guard = self._now, stake.dues, self._guard
        depth = len(dues)
        ahead, sizes, seconds_of, rates = self._rule.ahead, menu.sizes, menu.seconds, menu.rates
        found, value = None, -inf
        most = min(most, int(depth * each + 0.5))
        for place in range(min(bisect_left(sizes, most), len(sizes) - 1), -1, -1):
            if value * each >= rates[place] * stake.price:
                break  # no smaller one can be better
            seconds = seconds_of[place] * guard + load
            end = now + seconds
            late = bisect_left(dues, end) if dues[0] < end else 0
            fits = int(min(sizes[place], most) / each) or 1
            served = min(fits, depth - late)
            if served <= 0:
                continue
            net = served * stake.price
            if ahead:
                net -= ahead * self._lost(stake, served, late, seconds)
            if net > value * seconds:
                value, found = net / seconds, (sizes[place], late, seconds)
            elif found is not None:
                break  # what a size gains and what it loses both grow with it, so there is one summit
        return None if found is None else self._made(stake, *found, value)

    def only(self, stake: Stake, requests: int, seconds: float) -> Offer:
        """The dispatch of a model that has no choice, or nothing to offer that would be in time."""
        seconds = max(seconds * self._guard, LEAST_COST)
        late = bisect_left(stake.dues, self._now + seconds)
        served = min(requests, len(stake.dues) - late)
        if served <= 0:
            return Offer(None, 0, stake.dues[0], seconds, -inf)
        net = served * stake.price - self._rule.ahead * self._lost(stake, served, late, seconds)
        return self._made(stake, None, late, seconds, net / seconds)

    def _made(self, stake: Stake, size: int | None, late: int, seconds: float, value: float) -> Offer:
        if self._rule.latest_start:
            return Offer(size, late, stake.dues[late] - seconds, seconds, value)
        return Offer(size, 0, stake.dues[0], seconds, value)

    def _lost(self, stake: Stake, served: int, late: int, seconds: float) -> float:
        """The worth of what an execution of so many seconds makes late, queued or still to come."""
        end = self._now + seconds
        behind = 0
        if late + served < len(stake.dues):
            behind = max(bisect_left(stake.dues, end + stake.reach) - late - served, 0)
        lost = stake.price * ((late - stake.gone) * self._skip + behind)
        for first, other in self._urgent:
            if first >= seconds:
                break
            here = 0.0
            if other is not stake:
                here = other.price * (bisect_left(other.dues, end + other.reach) - other.gone)
            if seconds > other.budget:
                here += other.coming * (seconds - other.budget)
            lost += here * self._rule.protect if other.below_share and not stake.below_share else here
        return lost
