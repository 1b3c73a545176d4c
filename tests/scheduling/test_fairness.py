"""Device time by weight over a virtual clock: long-run shares, and nobody locked out."""

import random

import pytest

from app.domain.config import ModelPolicy
from app.domain.model import Variant
from tests.builders import request, spec
from tests.scheduling.simulation import Device, push, scheduler

SINGLE = (Variant("default", (1,), {}),)
DISPATCHES = 20_000


def models(*names):
    return [spec(name, variants=SINGLE) for name in names]


def weights(**by_model):
    return {name: ModelPolicy(weight=weight) for name, weight in by_model.items()}


def backlogged(device, names, dispatches):
    """Keep every model backlogged: two queued, one more after each dispatch."""
    for name in names:
        device.contend(name, 2)
    for _ in range(dispatches):
        device.contend(device.step())


@pytest.mark.parametrize("idle", [0, 50])
@pytest.mark.parametrize(
    ("weight", "cost", "share"), [((3, 1), (10, 10), 0.75), ((1, 1), (10, 100), 0.5), ((99, 1), (10, 10), 0.99)]
)
def test_long_run_shares_follow_the_weights_however_many_models_idle(weight, cost, share, idle):
    names = [f"idle{i}" for i in range(idle)]
    policies = {**weights(a=weight[0], b=weight[1]), **{name: ModelPolicy(weight=1e6) for name in names}}
    made = scheduler(*models("a", "b", *names), policies=policies)
    seconds = {"a": cost[0] / 1e3, "b": cost[1] / 1e3}
    device = Device(made, lambda dispatch: seconds[dispatch.model_id])
    backlogged(device, ["a", "b"], DISPATCHES if not idle else DISPATCHES // 4)
    assert device.share("a") == pytest.approx(share, abs=0.01)


def test_a_model_that_wakes_beside_a_long_busy_one_locks_it_out_for_its_credit_only():
    device = Device(scheduler(*models("busy", "woken")), lambda dispatch: 0.01)
    device.contend("busy", 1000)
    while device.now < 60.0:
        device.step()
        device.contend("busy")
    device.longest_gap.clear()
    device.contend("woken", 1000)
    ran = [device.step() for _ in range(200)]
    assert ran[:20].count("woken") >= 19  # the credit: a quarter of a second ahead
    assert device.longest_gap["busy"] == pytest.approx(0.25, abs=0.03)
    assert ran[50:].count("woken") == pytest.approx(75, abs=3)


def test_the_credit_of_a_woken_model_is_measured_against_the_others_use_per_share():
    policies = weights(a=2.0, b=1.0, woken=1.0)
    made = scheduler(*models("a", "b", "woken"), policies=policies, fair_credit_seconds=0.0)
    device = Device(made, lambda dispatch: 0.01)
    backlogged(device, ["a", "b"], 3000)
    device.contend("woken", 400)
    ran = [name for name in (device.step() for _ in range(400)) if not device.contend(name)]
    assert {name: ran.count(name) for name in policies} == pytest.approx({"a": 200, "b": 100, "woken": 100}, abs=3)


def test_models_that_wake_together_do_not_lock_each_other_out():
    device = Device(scheduler(*models("a", "b", "c")), lambda dispatch: 0.01)
    device.contend("a", 1000)
    for _ in range(1000):
        device.step()
    device.now += 5.0  # everyone sleeps, "a" with all its use behind it
    for name in "abc":
        device.contend(name, 300)
    ran = [device.step() for _ in range(300)]
    assert ran[100:].count("a") == pytest.approx(67, abs=4)
    assert max(device.longest_gap.values()) <= 0.55


def test_a_short_gap_forfeits_nothing():
    device = Device(scheduler(*models("a", "b"), fair_credit_seconds=0.0), lambda dispatch: 0.01)
    device.contend("a", 500)
    device.contend("b", 5)
    for _ in range(60):
        device.step()
    device.contend("b", 100)  # half a second without work: it is owed half of what "a" used in it
    assert [device.step() for _ in range(50)].count("b") >= 48


def test_a_long_gap_forfeits_all():
    device = Device(scheduler(*models("a", "b"), fair_credit_seconds=0.0), lambda dispatch: 0.01)
    device.contend("a", 500)
    device.contend("b", 5)
    for _ in range(120):
        device.step()
    device.contend("b", 100)
    assert [device.step() for _ in range(50)].count("b") == pytest.approx(25, abs=1)


@pytest.mark.parametrize("seed", range(4))
def test_no_contender_of_a_tenth_waits_longer_than_a_second_and_one_execution(seed):
    """Ten equal models that work, pause and burst at random, for minutes; even weights change on the way."""
    chance = random.Random(seed)
    names = [f"m{i}" for i in range(10)]
    costs = {name: chance.choice([0.002, 0.01, 0.03]) for name in names}
    made = scheduler(*models(*names), max_queue_depth=10**6)
    device = Device(made, lambda dispatch: costs[dispatch.model_id])
    wake_at = dict.fromkeys(names, 0.0)
    while device.now < 150.0:
        for name in names:
            if device.now >= wake_at[name]:
                device.contend(name, chance.choice([1, 5, 50, 400]))
                wake_at[name] = device.now + chance.choice([0.05, 0.5, 2.0, 20.0])
        if device.step() is None:
            device.now = min(wake_at.values())
    assert 0.05 < max(device.longest_gap.values()) <= 1.0 + 10 * max(costs.values())
    assert made.stats(device.now).share_wait_seconds_max == pytest.approx(max(device.longest_gap.values()), abs=0.1)


def test_a_change_of_weight_does_not_lock_out_the_one_that_used_most():
    made = scheduler(*models("a", "b"))
    device = Device(made, lambda dispatch: 0.01)
    backlogged(device, ["a", "b"], 4000)
    made.set_policy("a", ModelPolicy(weight=9.0))
    device.longest_gap.clear()
    for _ in range(2000):
        device.contend(device.step())
    assert device.longest_gap["b"] <= 1.02


def test_a_newcomer_does_not_starve_beside_one_with_endless_credit():
    device = Device(scheduler(*models("a", "b"), fair_credit_seconds=1e9), lambda dispatch: 0.01)
    device.contend("a", 1000)
    for _ in range(500):
        device.step()
    device.made.withdraw(device.made._queues["a"].leading(500), device.now)
    device._since.clear()
    device.contend("b", 1000)
    device.step()
    device.longest_gap.clear()
    device.contend("a")
    for _ in range(110):
        device.step()
    assert 0.99 <= device.longest_gap["a"] <= 1.02


def test_time_spent_waiting_for_company_is_not_starvation():
    made = scheduler(spec("a"), *models("b"), policies={"a": ModelPolicy(max_wait_ms=2000)})
    push(made, *[request("a") for _ in range(5)], request("b"), request("b"))
    for _ in range(2):
        dispatch = made.next_decision(0.0).dispatch
        made.record(dispatch, {"a": 0.9, "b": 0.1}[dispatch.model_id], 0.0)
    assert made._queues["a"].depth == 1
    for _ in range(2):
        push(made, request("b", enqueued_at=1.9), now=1.9)
        assert made.next_decision(1.9).dispatch.model_id == "b"
    push(made, request("b", enqueued_at=2.0), now=2.0)
    assert made.next_decision(2.0).dispatch.model_id == "b"


def test_without_any_use_yet_the_order_is_share_per_cost():
    policies = weights(a=1.0, b=3.0, c=2.0)
    made = scheduler(*models("a", "b", "c"), policies=policies, recency_penalty_cap=1.0)
    for name, cost in (("a", 0.01), ("b", 0.06), ("c", 0.03)):
        made.seed_cost(name, "default", 1, cost, 0.0)
        push(made, request(name))
    assert [made.next_decision(0.0).dispatch.model_id for _ in range(3)] == ["a", "c", "b"]


def test_a_merged_dispatch_is_charged_once_not_once_per_request():
    made = scheduler("m")
    push(made, *[request() for _ in range(4)])
    made.record(made.next_decision(0.0).dispatch, 0.5, 0.0)
    assert made.stats(0.0).models["m"].recent_seconds == pytest.approx(0.5)


def test_weights_share_time_and_not_dispatches():
    made = scheduler(*models("a", "b"), policies=weights(a=3.0, b=1.0))
    device = Device(made, lambda dispatch: {"a": 0.001, "b": 0.02}[dispatch.model_id])
    backlogged(device, ["a", "b"], 20_000)
    assert device.share("a") == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("reloads", [False, True])
def test_a_newcomer_beside_a_long_busy_model_gets_its_share_and_no_more_even_across_a_reload(reloads):
    """Ten minutes alone, then a new model; the old one is replaced on the way, and is no newcomer by that."""
    made = scheduler(*models("busy", "other"))
    device = Device(made, lambda dispatch: 0.05)
    backlogged(device, ["busy", "other"], 6_000)
    assert device.now >= 250
    made.add_model("new", models("new")[0], ModelPolicy())
    running = ["busy", "other", "new"]
    if reloads:
        made.add_model("busy2", models("busy")[0], ModelPolicy())
        made.carry_over("busy", "busy2")
        made.remove_model("busy")
        running[0] = "busy2"
    device.used.clear()
    device.longest_gap.clear()
    device._since.clear()
    device.contend("new", 2)
    if reloads:
        device.contend("busy2", 2)
    begun = device.now
    while device.now < begun + 60:  # two half-lives
        device.contend(device.step())
    assert [device.share(name) for name in running] == pytest.approx([1 / 3] * 3, abs=0.02)
    assert max(device.longest_gap.values()) <= 0.6
