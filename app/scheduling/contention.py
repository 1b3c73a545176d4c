"""Who contends for the device, for which share of it, and who of them the discipline lets have it."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TypeVar

from app.domain.config import SchedulerConfig
from app.scheduling.appraisal import Appraisal
from app.scheduling.disciplines import DISCIPLINES, Candidate
from app.scheduling.disciplines.base import GUARDED_SHARE
from app.scheduling.learning import UsageLedger
from app.scheduling.planning import UNSEEDED_COST, Planner
from app.scheduling.plans import Offer
from app.scheduling.queues import ModelQueue, Weights
from app.scheduling.request import QueuedRequest
from app.scheduling.value import ValueRule

R = TypeVar("R", bound=QueuedRequest)

#: A model without queued work for longer than this has been idle.
IDLE_SECONDS = 1.0


class Contention:
    """The choice among the models with queued work, under one configuration."""

    def __init__(
        self,
        config: SchedulerConfig,
        planner: Planner,
        ledger: UsageLedger,
        looks_ahead: bool,
        background_loads: bool,
        rule: ValueRule,
    ) -> None:
        self._config = config
        self._looks_ahead = looks_ahead
        self._absent: tuple[Weights, ...] = ("loading", "cold") if background_loads else ("loading",)
        self._discipline = DISCIPLINES[config.discipline]
        self._planner = planner
        self._ledger = ledger
        self._appraisal = Appraisal(config, rule, planner, ledger) if config.sizing == "value" else None
        self.longest_wait = 0.0
        """Longest time that a contender with a guarded share waited for a dispatch."""

    def choose(self, active: Iterable[ModelQueue[R]], now: float) -> tuple[ModelQueue[R] | None, float]:
        """The queue to serve, or None and the instant to look again.

        Contenders are releasable, and their weights are resident, or the dispatch has to bring them. Committed work is
        served before the discipline chooses, in order of arrival.
        """
        ready: list[ModelQueue[R]] = []
        held: list[ModelQueue[R]] = []
        wake_at = inf
        for queue in active:
            if queue.offer is not None:  # what it offered ended with that decision
                self._planner.propose(queue, None)
            plain = queue.weights == "resident" and not queue.policy.max_wait_ms
            opens_at = now if plain else self._opens_at(queue, now)
            if opens_at > now:
                queue.waiting_since = inf
                wake_at = min(wake_at, opens_at, queue.soonest_due())
                held.append(queue)
                continue
            if queue.waiting_since > now:
                queue.waiting_since = now
            ready.append(queue)
        if not ready:
            return None, wake_at
        committed = [queue for queue in ready if queue.committed]
        if committed:
            first = min(committed, key=lambda each: each.front().enqueued_at)
            return self._select([first], now), now  # no choice, but for the size
        chosen = self._select(ready, now)
        if held and self._looks_ahead:
            chosen = self._look_ahead(chosen, ready, held, now)
        return chosen, now

    def present(self, active: Iterable[ModelQueue[R]]) -> Iterator[ModelQueue[R]]:
        """Those that may contend as far as weights go: while the others wait for theirs, they are ahead of nobody."""
        return (queue for queue in active if queue.weights not in self._absent)

    def _opens_at(self, queue: ModelQueue[R], now: float) -> float:
        if queue.weights in self._absent:
            return inf
        return self._planner.opens_at(queue, now) if queue.policy.max_wait_ms else now

    def _select(self, ready: Sequence[ModelQueue[R]], now: float) -> ModelQueue[R]:
        if self._appraisal is not None:
            ready = self._appraisal.worthwhile(ready, now)
        if len(ready) == 1:
            return ready[0]
        level(ready, self._ledger, self._config.fair_credit_seconds, now)
        snapshots = self._candidates(ready, now)
        best = self._discipline.select(snapshots, self._config)
        if best.share >= GUARDED_SHARE and best.waited > self.longest_wait:
            self.longest_wait = best.waited
        return next(queue for queue in ready if queue.model_id == best.model_id)

    def _look_ahead(
        self, chosen: ModelQueue[R], ready: list[ModelQueue[R]], held: list[ModelQueue[R]], now: float
    ) -> ModelQueue[R]:
        """Let models that wait for company contend when, after the choice has run, they could not end in time."""
        seconds = self._planner.seconds
        held = [queue for queue in held if queue.weights not in self._absent]
        while True:
            end = now + seconds(chosen)
            urgent = [queue for queue in held if queue.soonest_due() - seconds(queue) < end]
            if not urgent:
                return chosen
            held = [queue for queue in held if queue not in urgent]
            ready = ready + urgent
            chosen = self._select(ready, now)

    def _candidates(self, ready: Sequence[ModelQueue[R]], now: float) -> list[Candidate]:
        standings = self._ledger.standings([queue.account for queue in ready])
        total_weight = sum([queue.policy.weight for queue in ready], 0.0)
        total_standing = sum(standings, 0.0) or 1.0
        found = []
        for queue, standing in zip(ready, standings, strict=True):
            cost, merges, oldest, due = self._prospect(queue) if queue.offer is None else _offered(queue, queue.offer)
            share, recent = queue.policy.weight / total_weight, standing / total_standing
            waited = max(now - queue.waiting_since, 0.0)
            found.append(Candidate(queue.model_id, queue.name, share, recent, cost, merges, oldest, due, waited))
        return found

    def _prospect(self, queue: ModelQueue[R]) -> tuple[float, bool, float, float]:
        """Of the planned dispatch: cost, whether it merges, oldest arrival, soonest due instant."""
        plan = self._planner.plan(queue)
        cost = UNSEEDED_COST if plan.cost is None else plan.cost
        cost = cost if queue.weights == "resident" else cost + self._planner.load(queue)
        return cost, plan.take > 1, plan.oldest_enqueued_at, queue.soonest_due()


def _offered(queue: ModelQueue[R], offer: Offer) -> tuple[float, bool, float, float]:
    """The same of the dispatch that is worth most; without planning it."""
    return offer.cost, queue.depth > 1, queue.front().enqueued_at, offer.starts_by


def level(contenders: Sequence[ModelQueue[R]], ledger: UsageLedger, credit: float, now: float) -> None:
    """No credit for idleness: raise those that woke to what the others used per share, less `credit` seconds.

    For one that wakes this is share/(1 - share) times the sum of the others'. Several that wake together are taken
    from the one that used most downwards, each against those before it, so that none is measured by another's sleep.
    """
    woken = [queue for queue in contenders if queue.credit_pending]
    if not woken:
        return
    used = weight = 0.0
    for queue in contenders:
        if not queue.credit_pending:
            used += ledger.standing(queue.account)
            weight += queue.policy.weight
    woken.sort(key=lambda queue: ledger.standing(queue.account) / queue.policy.weight, reverse=True)
    for queue in woken:
        queue.credit_pending = False
        own = ledger.standing(queue.account)
        if own * weight >= used * queue.policy.weight:
            used += own
            weight += queue.policy.weight
        else:
            ledger.raise_standing(queue.account, used / weight * queue.policy.weight, credit, now)
