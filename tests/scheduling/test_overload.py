"""The scheduler under more than it can do, or with less than it would like to know: on a virtual clock."""

from heapq import heappop, heappush
from itertools import count
from math import inf, isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import DeadlineInfeasible, QueueFull
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from tests.builders import request, spec
from tests.scheduling.simulation import PATIENT, burst, push, scheduler, seed

SIZES = (1, 2, 4, 8)
DISCIPLINES = ("fair", "fifo", "edf")


def cost(size):
    return 0.002 + 0.001 * size


CAPACITY = SIZES[-1] / cost(SIZES[-1])  # requests per second


def made_for(discipline, overrated=1, **config):
    """A scheduler as it is configured by default, admission included, that was told what its model costs."""
    made: Scheduler[QueuedRequest] = Scheduler(SchedulerConfig(discipline=discipline, **config))
    made.add_model("m", spec("m", sizes=SIZES), ModelPolicy())
    if overrated:
        seed(made, "m", {size: overrated * cost(size) for size in SIZES})
    return made


class Clients:
    """Each has one request out. One that is not answered in time is withdrawn and sent again at once.

    Who is refused tries again a little later, as `Retry-After` would have it. The server knows the timeout. A dispatch
    takes up to `scatter` times its cost more or less.
    """

    TIMEOUT = 0.05
    PAUSE = 0.01

    def __init__(self, made, number, scatter=0.0):
        self.made = made
        self.scatter = scatter
        self.chance = Random(1)
        self.events = []
        self.order = count()
        self.waiting = set()
        self.answered = self.wasted = self.sent = 0
        for _ in range(number):
            self.later(self.chance.random() * self.TIMEOUT, None)

    def later(self, instant, expiring):
        heappush(self.events, (instant, next(self.order), expiring))

    def until(self, end):
        """Let everything happen that happens up to `end`."""
        while self.events and self.events[0][0] <= end:
            now, _, expiring = heappop(self.events)
            if expiring is None:
                self.send(now)
            elif expiring in self.waiting:
                self.made.withdraw([expiring], now)
                self.gone(expiring, now)

    def send(self, now):
        one = request("m", enqueued_at=now, deadline=now + self.TIMEOUT)
        self.sent += 1
        try:
            self.made.enqueue([one], now)
        except (QueueFull, DeadlineInfeasible):
            self.later(now + self.PAUSE * (0.5 + self.chance.random()), None)
        else:
            self.waiting.add(one)
            self.later(now + self.TIMEOUT, one)

    def gone(self, one, now):
        self.waiting.discard(one)
        self.later(now, None)

    def run(self, seconds):
        now = 0.0
        while now < seconds:
            self.until(now)
            decision = self.made.next_decision(now)
            for one in decision.expired:
                self.gone(one, now)
            if decision.dispatch is None:
                now = min(decision.wake_at, self.events[0][0])
                continue
            now = self.serve(decision.dispatch, now)

    def serve(self, dispatch, now):
        spent = cost(dispatch.size) * (1 + self.chance.uniform(-self.scatter, self.scatter))
        end = now + spent
        self.until(end)
        self.made.record(dispatch, spent, end)
        for one in dispatch.requests:
            if one in self.waiting:
                self.answered += 1
                self.gone(one, end)
            else:
                self.wasted += 1
        return end


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("load", [1.0, 2.0, 10.0])
def test_a_storm_of_retries_leaves_most_of_the_capacity_to_answers_in_time(discipline, load):
    clients = Clients(made_for(discipline), int(load * CAPACITY * Clients.TIMEOUT))
    clients.run(10.0)
    assert clients.sent >= 0.9 * load * CAPACITY * 10.0
    assert clients.answered > 0.6 * CAPACITY * 10.0
    assert clients.wasted < 0.1 * clients.answered


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("load", [1.5, 4.0])
def test_under_overload_nobody_is_served_so_late_that_a_slower_dispatch_would_lose_all(discipline, load):
    """Before, one answer in fourteen came too late."""
    clients = Clients(made_for(discipline, admission="floor"), int(load * CAPACITY * Clients.TIMEOUT), scatter=0.3)
    clients.run(10.0)
    assert clients.answered > 0.98 * CAPACITY * 10.0
    assert clients.wasted < 0.01 * clients.answered


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_model_that_was_measured_on_a_bad_day_is_tried_again(discipline):
    """The probes of the load ran beside something heavy: every size seems to take longer than any client waits."""
    made = made_for(discipline, overrated=20)
    answered = 0
    for second in range(1, 601):
        now = float(second)
        try:
            push(made, request("m", enqueued_at=now, deadline=now + 0.03), now=now)
        except DeadlineInfeasible:
            continue
        dispatch = made.next_decision(now).dispatch
        if dispatch is not None:
            made.record(dispatch, cost(dispatch.size), now + cost(dispatch.size))
            answered += 1
    assert answered > 500


@pytest.mark.parametrize("budget", [inf, 1.0])
@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_cold_burst_is_taken_whole_and_served(discipline, budget):
    made = made_for(discipline, overrated=0)
    now, served = 0.0, 0
    push(made, *burst(200, deadline=budget))
    while dispatch := made.next_decision(now).dispatch:
        now += cost(dispatch.size)
        made.record(dispatch, cost(dispatch.size), now)
        served += len(dispatch.requests)
    stats = made.stats(now).models["m"]
    assert served == 200
    assert sum(stats.drops.values()) == 0
    assert all(isfinite(seconds) and seconds > 0 for seconds in stats.costs.values())


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_burst_below_the_depth_is_never_refused(discipline):
    made = made_for(discipline, max_queue_depth=10_000)
    push(made, *burst(10_000))
    assert made.stats(0.0).queue_depth == 10_000
    with pytest.raises(QueueFull):
        push(made, request())
    served = 0
    while dispatch := made.next_decision(0.0).dispatch:
        served += len(dispatch.requests)
    assert served == 10_000


LONE = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 40),
        "sizes": st.sampled_from([(1,), (8,), (1, 4), (1, 2, 4, 8)]),
        "cap": st.sampled_from([None, 1, 3, 100]),
        "costs": st.sampled_from([{}, {1: 0.5, 8: 0.5}, {1: 0.0, 2: 0.0, 4: 0.0, 8: 0.0}, {8: 1e9}]),
        "budget": st.sampled_from([inf, 1e9, 0.1, 1e-9, 0.0]),
        "wait_ms": st.sampled_from([0, 50, 86_400_000]),
        "discipline": st.sampled_from(DISCIPLINES),
    }
)


@PATIENT
@given(LONE, st.sampled_from([0.0, 1e6]))
def test_a_request_that_fits_nothing_still_leaves_and_nobody_turns_in_circles(lone, start):
    policy = ModelPolicy(max_batch_size=lone["cap"], max_wait_ms=lone["wait_ms"])
    made = scheduler(spec("m", sizes=lone["sizes"]), policies={"m": policy}, discipline=lone["discipline"])
    seed(made, "m", {size: seconds for size, seconds in lone["costs"].items() if size in lone["sizes"]})
    one = request(rows=lone["rows"], enqueued_at=start, deadline=start + lone["budget"])
    push(made, one, now=start)
    now, left = start, []
    for _ in range(2):  # at once, or when it is told to look again
        decision = made.next_decision(now)
        left += [*decision.expired, *(decision.dispatch.requests if decision.dispatch else ())]
        if left:
            break
        assert now < decision.wake_at < inf
        now = decision.wake_at
    assert left == [one]
    assert made.next_decision(now).wake_at == inf
