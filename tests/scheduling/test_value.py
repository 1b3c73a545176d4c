"""Net value: who stands back, at which size, at which price; and that it starves nobody."""

from dataclasses import replace
from math import e
from typing import ClassVar

import pytest

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import DeadlineInfeasible
from app.scheduling.demand import Demand
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from app.scheduling.value import NET, ValueRule, dearest, price
from load_tests.identity import Pair, differing
from load_tests.simulate.rules import rule
from load_tests.simulate.run import simulate
from load_tests.simulate.scenarios import SCENARIOS
from tests.builders import request, spec
from tests.scheduling.simulation import burst, push, scheduler, seed, served

PLAIN = ValueRule(dearest=1.0)
#: Its contenders are overdue all the time.
IMPATIENT = ValueRule(patience=0.005)
SIZES = (1, 2, 4, 8)


def valued(*models, policies=None, costs=None, value=PLAIN, sizes=SIZES, **config):
    """A scheduler whose models cost 10 ms, whatever the size, unless told otherwise."""
    made: Scheduler[QueuedRequest] = Scheduler(
        SchedulerConfig(**{"discipline": "edf", "sizing": "value", "admission": "off", **config}), rule=value
    )
    for name in models or ("m",):
        made.add_model(name, spec(name, sizes=sizes), (policies or {}).get(name, ModelPolicy()))
        seed(made, name, (costs or {}).get(name, dict.fromkeys(sizes, 0.01)))
    return made


def run(made, now, seconds=None):
    """Let one dispatch run for as long as it was expected to, or so long; (its model, the instant it ends)."""
    dispatch = made.next_decision(now).dispatch
    if dispatch is None:
        return None, now
    if seconds is None:
        seconds = made.stats(now).models[dispatch.model_id].costs["default", dispatch.size]
    made.record(dispatch, seconds, now + seconds)
    return dispatch, now + seconds


# sizes


def test_a_batch_is_kept_small_enough_for_the_requests_of_another_model():
    """Alone it runs eight at a time; with a tight deadline elsewhere only as many as leave it enough time."""
    costs = {size: 0.01 * size for size in SIZES}
    made = valued("big", "small", costs={"big": costs})
    push(made, *burst(8, "big", deadline=10.0))
    push(made, *burst(3, "small", deadline=0.055))
    plain = scheduler(spec("big", sizes=SIZES), discipline="edf", sizing="fill")
    seed(plain, "big", costs)
    push(plain, *burst(8, "big", deadline=10.0))
    assert len(served(plain.next_decision(0.0))) == 8
    first = made.next_decision(0.0).dispatch
    assert first.model_id == "small" or first.size <= 4


def test_what_is_expected_to_come_counts_as_what_is_queued():
    """Requests of 20 ms that come every 5 ms forbid a batch of 80 ms, though none is queued now."""
    made = valued("big", "small", costs={"big": {size: 0.0098 * size + 0.0002 for size in SIZES}})
    now = 0.0
    for _ in range(40):
        push(made, request("small", enqueued_at=now, deadline=now + 0.04), now=now)
        _, _ = run(made, now, 0.001)
        now += 0.005
    push(made, *burst(8, "big", now=now, deadline=now + 10.0), now=now)
    assert made.next_decision(now).dispatch.size < 8


def test_a_request_that_would_be_late_if_a_dispatch_took_as_long_as_it_may_leaves_for_others():
    """2.5 ms are left where 2 were learned, and executions differ by half of that."""
    made = valued(costs={"m": dict.fromkeys(SIZES, 0.002)})
    for _ in range(200):
        push(made, request(deadline=9.0))
        run(made, 0.0, 0.004 if made.stats(0.0).models["m"].costs["default", 1] < 0.003 else 0.001)
    cost = made.stats(0.0).models["m"].costs["default", 4]
    push(made, *burst(1, deadline=1.25 * cost), *burst(4, deadline=9.0))
    decision = made.next_decision(0.0)
    assert [each.deadline for each in decision.expired] == [1.25 * cost]
    assert len(decision.dispatch.requests) == 4


def tried(big, small):
    """The size of the 64th dispatch of `big`, whose requests allow so much, while those of `small` allow so much."""
    costs = {"big": {1: 0.01, 2: 0.03, 4: 0.09, 8: 0.2}, "small": dict.fromkeys(SIZES, 0.03)}
    made = valued("big", "small", costs=costs)
    now = 0.0
    for _ in range(63):
        push(made, request("big", enqueued_at=now, deadline=now + 9.0), now=now)
        _, now = run(made, now)
    push(made, *burst(2, "big", now=now, deadline=now + big), now=now)
    push(made, *burst(4, "small", now=now, deadline=now + small), now=now)
    dispatch = made.next_decision(now).dispatch
    assert dispatch.model_id == "big"
    return dispatch.size


def test_another_size_is_tried_unless_that_makes_too_many_late():
    assert tried(8.0, 9.0) == 2
    assert tried(0.031, 0.055) == 1


def test_without_deadlines_the_size_is_that_of_least_cost_per_row():
    made = valued(costs={"m": {1: 0.01, 2: 0.011, 4: 0.012, 8: 0.1}})
    push(made, *burst(8))
    assert made.next_decision(0.0).dispatch.size == 4


@pytest.mark.parametrize("own", ["fill", "cost"])
def test_a_model_may_have_a_sizing_of_its_own(own):
    made = valued(policies={"m": ModelPolicy(sizing=own)})
    push(made, *burst(8))
    assert made.next_decision(0.0).dispatch.size == 8


def test_only_requests_with_one_merge_key_count_as_one_batch():
    """A queue of requests that cannot merge is worth what one of them is, so it stands back."""
    made = valued("mixed", "plain", policies={"mixed": ModelPolicy(value=0.9)})
    keys = [request("mixed", deadline=5.0).merge_key._replace(extents=(n,)) for n in range(8)]
    push(made, *[request("mixed", deadline=5.0, key=key) for key in keys])
    push(made, *burst(8, "plain", deadline=9.0))
    assert made.next_decision(0.0).dispatch.model_id == "plain"


# who stands back


def test_a_model_worth_little_for_its_time_stands_back_until_it_would_be_late():
    made = valued("dear", "cheap", policies={"dear": ModelPolicy(value=0.1)})
    push(made, request("dear", deadline=0.5), *burst(8, "cheap", deadline=5.0))
    assert made.next_decision(0.0).dispatch.model_id == "cheap"


def test_the_value_of_a_model_decides_which_of_two_is_given_up():
    for favoured, other in (("a", "b"), ("b", "a")):
        made = valued("a", "b", policies={favoured: ModelPolicy(value=10.0)})
        push(made, *[request(name, deadline=0.015) for name in "ab"])
        assert made.next_decision(0.0).dispatch.model_id == favoured
        assert made.stats(0.0).models[other].queue_depth == 1


def test_a_load_that_a_dispatch_would_wait_for_counts_as_its_time():
    made = valued("cold", "warm")
    made.record_load("cold", 0.5, 0.0)
    made.set_weights("cold", "cold")
    push(made, *burst(2, "cold", deadline=0.6), *burst(2, "warm", deadline=0.62))
    assert made.next_decision(0.0).dispatch.model_id == "warm"


def test_under_fair_a_model_below_its_share_does_not_stand_back():
    made = valued("rare", "busy", policies={"rare": ModelPolicy(value=0.01)}, discipline="fair")
    now, seen = 0.0, set()
    for _ in range(60):
        push(made, *burst(8, "busy", now=now, deadline=now + 1.0), request("rare", enqueued_at=now, deadline=now + 1.0))
        dispatch, now = run(made, now)
        seen.add(dispatch.model_id)
    assert seen == {"rare", "busy"}


# prices


def test_a_price_rises_e_fold_with_each_part_that_is_missed_up_to_the_limit():
    prices = [price(ValueRule(rise=0.1), 2.0, part / 10, part / 10, 10.0) for part in range(11)]
    assert prices == pytest.approx([2.0, 2.0 * e, 2.0 * e**2] + [20.0] * 8)
    assert price(NET, 2.0, 0.5, 0.5, 1.0) == 2.0


def test_who_misses_less_than_the_most_stays_as_much_cheaper_and_nobody_is_below_the_value():
    prices = [price(ValueRule(rise=0.1), 2.0, missed, 0.8, 10.0) for missed in (0.8, 0.7, 0.6, 0.2)]
    assert prices == pytest.approx([20.0, 20.0 / e, 20.0 / e**2, 2.0])


def test_no_price_is_above_the_limit_whatever_the_most_was_taken_to_be():
    """`most` is of the last look: who missed more since then would be `e ** 8` times as dear."""
    assert price(ValueRule(rise=0.1), 2.0, 0.8, 0.0, 10.0) == pytest.approx(20.0)


def test_prices_may_rise_the_higher_the_more_of_its_time_the_device_misses():
    value = ValueRule(calm=2.0, dearest=4.0, misses_dear=0.2)
    assert [dearest(value, part) for part in (0.0, 0.1, 0.15, 0.2, 0.9)] == pytest.approx([2.0, 2.0, 3.0, 4.0, 4.0])
    assert [dearest(PLAIN, part) for part in (0.0, 0.5)] == [1.0, 1.0]


@pytest.mark.parametrize(("cost", "first"), [(1.0, "b"), (0.0001, "a")], ids=["little", "nearly all"])
def test_what_the_device_misses_is_counted_in_its_time(cost, first):
    """Most of `a` is missed, and nothing of the more that others are asked for: in time little, or nearly all.

    An answer of `b` is worth 2.5 of `a`, unless the price of those rises above that.
    """
    policies = {"b": ModelPolicy(value=2.5)}
    made = valued("a", "b", "others", value=NET, policies=policies, costs={"others": dict.fromkeys(SIZES, cost)})
    now = 0.0
    for _ in range(10):
        push(made, *burst(8, "others", now=now, deadline=now + 9.0), now=now)
        _, now = run(made, now)
    for _ in range(400):
        made._queues["a"].demand.refuse(now)
    push(made, request("a", enqueued_at=now, deadline=now + 9.0), now=now)
    _, now = run(made, now)  # the next look goes by what this one saw
    push(made, *[request(name, enqueued_at=now, deadline=now + 0.015) for name in "ab"], now=now)
    assert made.next_decision(now).dispatch.model_id == first


def test_a_model_that_has_nothing_to_run_sets_no_prices():
    """All that is asked of it is refused; did that lower the prices of the others, the worth of `b` would decide."""
    made = valued("a", "b", "hopeless", value=ValueRule(), policies={"b": ModelPolicy(value=3.0)})
    push(made, request("hopeless", deadline=9.0))
    _, now = run(made, 0.0)
    for name, times in (("hopeless", 20), ("a", 4)):
        for _ in range(times):
            made._queues[name].demand.refuse(now)
    push(made, request("b", enqueued_at=now, deadline=9.0), now=now)
    _, now = run(made, now)
    push(made, *[request(name, enqueued_at=now, deadline=now + 0.015) for name in "ab"], now=now)
    assert made.next_decision(now).dispatch.model_id == "a"


def test_what_was_missed_fades_and_few_requests_say_little():
    demand = Demand()
    for _ in range(10):
        demand.refuse(0.0)
    much = demand.missed
    demand.arrive(request(enqueued_at=0.0))  # no deadline: nobody can miss it
    assert demand.missed == much > 0.7
    few = Demand()
    few.refuse(0.0)
    assert few.missed < 0.3
    late = request(enqueued_at=100.0, deadline=101.0)
    late.due = 101.0
    demand.arrive(late)
    assert demand.missed < 0.01


@pytest.mark.parametrize(("name", "seconds"), [("M1", 5.0), ("C1", 20.0)])
def test_in_overload_no_model_is_given_up_for_the_others(name, seconds):
    scenario = replace(SCENARIOS[name], seconds=seconds)
    worst = simulate(scenario, rule("edf sizing=value"), 2.0 * scenario.rate, 5).worst
    given_up = simulate(scenario, rule("edf sizing=value dearest=1"), 2.0 * scenario.rate, 5).worst
    assert worst > given_up + 0.1


def test_what_runs_together_leaves_the_due_instants_whatever_its_deadlines():
    for deadlines, left in (([1.0, 2.0, 3.0], 3.0), ([5.0, 1.0, 3.0], 3.0), ([2.0, 2.0, 2.0], 2.0)):
        made = valued(sizes=(1, 2))
        push(made, *[request("m", deadline=deadline) for deadline in deadlines])
        assert len(made.next_decision(0.0).dispatch.requests) == 2
        assert made._queues["m"].demand.dues == [left]


# what holds whatever happens


@pytest.mark.parametrize("name", ["M1", "C2", "S3"])
def test_more_is_answered_in_time_than_under_edf_and_the_same_every_time(name):
    scenario = SCENARIOS[name]
    runs = [simulate(scenario, rule("edf sizing=value"), 1.5 * scenario.rate, 7) for _ in range(2)]
    best = simulate(scenario, rule("edf"), 1.5 * scenario.rate, 7)
    assert [model.in_time for model in runs[0].models] == [model.in_time for model in runs[1].models]
    assert runs[0].in_time > best.in_time


def test_with_the_parameters_of_fill_it_decides_as_edf_with_fill():
    """`python -m load_tests identity` compares a hundred thousand states."""
    assert differing(4000) is None


class Forgetful(Pair):
    """The same rule twice; one forgets before each decision what was planned and offered for the one before."""

    discipline: ClassVar[str]
    rule: ClassVar[ValueRule]

    def schedulers(self):
        config = SchedulerConfig(discipline=self.discipline, sizing="value", admission="off", max_queue_depth=64)
        return Scheduler(config, rule=self.rule), Scheduler(config, rule=self.rule)

    def decide(self, each):
        if each is self.both[1]:
            for queue in each._queues.values():
                assert queue.demand is not None
                queue.plan = queue.offer = queue.demand.menu = queue.demand.shortest = None
                queue.usable.clear()
        return super().decide(each)


@pytest.mark.parametrize("value", [NET, IMPATIENT], ids=["net", "impatient"])
@pytest.mark.parametrize("discipline", ["fair", "fifo", "edf"])
def test_no_decision_depends_on_what_was_planned_for_an_earlier_one(discipline, value):
    kind = type("Pairs", (Forgetful,), {"discipline": discipline, "rule": value})
    assert differing(5000, seed=1, pairs=kind) is None


def test_committed_work_runs_at_the_size_that_is_best_now_not_at_that_of_an_earlier_decision():
    """Eight were there first; of the three that are next, the model's policy now runs as many as fill a size."""
    made = valued()
    push(made, *burst(8))
    _, now = run(made, 0.0)
    push(made, *burst(3, now=now, committed=True), now=now)
    made.set_policy("m", ModelPolicy(sizing="fill"))
    assert made.next_decision(now).dispatch.size == 2


def test_other_parameters_decide_otherwise(monkeypatch):
    monkeypatch.setattr("load_tests.identity.AS_FILL", ValueRule())
    assert differing(1000) is not None


@pytest.mark.parametrize("discipline", ["fair", "fifo", "edf"])
def test_nobody_waits_longer_than_a_second_and_a_dispatch_of_each_who_waits_longer(discipline):
    """Three models of which one is worth next to nothing and has no deadlines: always queued, served all the same.

    The bound: a second, or twenty times what its dispatch takes, and one dispatch of each of the others.
    """
    costs = {"worthless": dict.fromkeys(SIZES, 0.04)}
    policies = {"worthless": ModelPolicy(value=1e-6)}
    made = valued("a", "b", "worthless", policies=policies, costs=costs, discipline=discipline)
    now, served_at, longest = 0.0, 0.0, 0.0
    push(made, *burst(8, "worthless"))
    for _ in range(1500):
        push(made, *burst(4, "a", now=now, deadline=now + 0.2), *burst(4, "b", now=now, deadline=now + 0.3), now=now)
        dispatch, end = run(made, now)
        if dispatch.model_id == "worthless":
            longest = max(longest, now - served_at)
            served_at = end
            push(made, *burst(8, "worthless", now=end), now=end)
        now = end
    longest = max(longest, now - served_at)
    assert 0.0 < longest <= 1.0 + 3 * 0.04


def test_admission_under_value_refuses_what_no_order_could_save_and_no_more():
    made = valued("m", admission=None)
    push(made, *burst(64, deadline=0.05))
    made.enqueue([request("m", deadline=0.05)], 0.0)
    with pytest.raises(DeadlineInfeasible):
        made.enqueue([request("m", deadline=0.005)], 0.0)


def test_a_reload_goes_on_with_what_was_asked_of_the_model():
    made = valued("old", "new")
    for step in range(20):
        push(made, request("old", enqueued_at=step / 100, deadline=step / 100 + 1), now=step / 100)
    made.carry_over("old", "new")
    push(made, request("new", enqueued_at=0.2, deadline=1.2), now=0.2)
    old, new = (made._queues[name].demand for name in ("old", "new"))
    assert new.rate(0.2) > old.rate(0.2) > 0.0
    assert len(old.dues) == 20
    assert len(new.dues) == 1
