"""Weights that do not fit: loads followed by hand, and the server's rule against the common one."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from app.scheduling.residency import LONGEST_COLD
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.residency import RESIDENCIES
from load_tests.simulate.rules import rule
from load_tests.simulate.run import replay, simulate
from load_tests.simulate.scenarios import TIGHT, Scenario

#: Arrivals that no rule was tuned on.
SEEDS = (5, 6)


def model(name, fixed_ms=10.0, deadline_ms=inf, **facts):
    return SimulatedModel(name, fixed_ms, 0.0, deadline_ms, sizes=(1,), **facts)


def run(milliseconds, owners, *models, weights="background", text="fifo admission=off", room=1):
    scenario = Scenario("T", "for tests", models, "poisson", 1.0, 1.0, room)
    return replay(scenario, rule(f"{text} weights={weights}"), (np.array(milliseconds) / 1e3, np.array(owners)))


def latencies(outcome, of=0):
    return [round(seconds * 1e3, 6) for seconds in outcome.models[of].latencies]


# by hand


def test_the_device_waits_for_every_load_where_nothing_comes_in_the_background():
    outcome = run([0, 20, 40], [0, 0, 1], model("a", load_ms=5), model("b", load_ms=7), weights="waiting")
    assert latencies(outcome) == [15.0, 10.0]
    assert latencies(outcome, of=1) == [17.0]
    assert [each.loads for each in outcome.models] == [1, 1]
    assert sum(each.waited for each in outcome.models) == pytest.approx(0.012)
    assert outcome.utilisation == pytest.approx(0.042)
    assert outcome.waiting == pytest.approx(0.012)
    assert outcome.hit_rate == pytest.approx(1 / 3)


def test_the_least_recently_used_leaves():
    models = [model(name, load_ms=5) for name in "abc"]
    outcome = run([0, 50, 100, 150, 200], [0, 1, 0, 2, 0], *models, weights="waiting", room=2)
    assert [each.loads for each in outcome.models] == [1, 1, 1]
    outcome = run([0, 50, 100, 150, 200], [0, 1, 0, 2, 1], *models, weights="waiting", room=2)
    assert [each.loads for each in outcome.models] == [1, 2, 1]


def test_resident_models_are_served_while_others_come():
    models = model("here", load_ms=1), model("coming", load_ms=50)
    outcome = run([0, 20, 21, 31, 41, 51, 61], [0, 1, 0, 0, 0, 0, 0], *models, room=2)
    assert latencies(outcome) == [11.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    assert latencies(outcome, of=1) == [61.0]  # there at 70, while an execution ran until 71
    assert outcome.models[1].longest_cold == pytest.approx(0.051)
    assert outcome.waiting == 0.0


def test_what_was_loaded_stays_for_a_while_after_its_last_work():
    outcome = run([0, 1], [0, 1], model("a", fixed_ms=1.0, load_ms=20), model("b", fixed_ms=1.0, load_ms=5))
    assert latencies(outcome) == [21.0]
    assert latencies(outcome, of=1) == [46.0]  # from 41, 20 after it ended, on
    assert outcome.wasted == 0


def test_what_was_loaded_and_has_work_stays_for_twice_its_load():
    models = model("a", fixed_ms=10.0, load_ms=20), model("b", fixed_ms=1.0, load_ms=5)
    outcome = run([0, 1] + [1] * 9, [0, 1] + [0] * 9, *models)
    assert min(latencies(outcome, of=1)) == 65.0  # from 60, 20 + 2 × 20, on


def test_a_load_after_which_nobody_waits_is_wasted():
    models = model("a", deadline_ms=20, load_ms=30), model("b", load_ms=5)
    outcome = run([0, 100], [0, 1], *models)
    assert outcome.models[0].drops == {"expired_queue": 1}
    assert (outcome.loads, outcome.wasted, outcome.models[0].wasted) == (2, 1, 1)


def test_a_model_that_is_never_idle_leaves_all_the_same():
    models = model("busy", load_ms=5), model("other", load_ms=5)
    outcome = run([0] * 50 + [20], [0] * 50 + [1], *models)
    assert latencies(outcome, of=1)[0] < 50.0


# the rule


def simulated(name, text, load, seed, **changes):
    scenario = replace(TIGHT[name], **{"seconds": 15.0, **changes})
    return simulate(scenario, rule(text), scenario.rate * load, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("discipline", ["fair", "fifo", "edf"])
@pytest.mark.parametrize("name", ["R10", "R10u", "R3"])
def test_under_thrash_more_is_answered_in_time_than_where_the_device_waits(name, discipline, seed):
    ours = simulated(name, discipline, 1.2, seed)
    best = max(simulated(name, f"{each} weights=waiting", 1.2, seed).goodput for each in ("fair", "fifo", "edf"))
    assert ours.goodput >= 1.3 * best
    assert ours.worst > 0.0


@pytest.mark.parametrize("discipline", ["fair", "edf"])
def test_with_room_for_half_nine_tenths_of_a_mild_load_are_answered_in_time(discipline):
    assert simulated("R10", discipline, 0.7, SEEDS[0]).attainment > 0.85


@pytest.mark.parametrize("name", TIGHT)
def test_what_is_loaded_works_before_it_leaves(name):
    outcome = simulated(name, "edf", 1.2, SEEDS[0])
    assert outcome.loads > 20
    assert outcome.wasted <= 0.02 * outcome.loads


@pytest.mark.parametrize("discipline", ["fair", "fifo"])
def test_one_that_is_rarely_asked_for_and_slow_to_load_is_not_starved(discipline):
    """Without deadlines, nothing but the rule lets anyone go: nine queues fill up, and load in a tenth of the time."""
    flooding = [SimulatedModel(f"m{place}", 5.0, 1.0, load_ms=50.0, share=100.0) for place in range(9)]
    rare = SimulatedModel("rare", 5.0, 1.0, load_ms=500.0, share=0.1)
    scenario = Scenario("T", "for tests", (rare, *flooding), "poisson", 1500.0, 60.0, 2)
    outcome = simulate(scenario, rule(f"{discipline} admission=off"), 1500.0, SEEDS[0])
    assert outcome.models[0].rows > 0
    slowest_turn = 2 * max(0.5, *[3 * each.load_ms / 1e3 for each in flooding])
    assert outcome.models[0].longest_cold <= LONGEST_COLD + len(flooding) * slowest_turn + 0.5


def test_every_request_is_answered_or_dropped_whatever_rule_moves_the_weights():
    for kind in RESIDENCIES:
        outcome = simulated("R3", f"edf weights={kind}", 1.5, SEEDS[0], seconds=5.0)
        for each in outcome.models:
            assert each.arrived == each.in_time + each.late + sum(each.drops.values())
        assert sum(each.busy for each in outcome.models) <= outcome.ended_at + 1e-9


def test_what_fits_is_never_loaded():
    assert simulated("R3", "edf", 0.5, SEEDS[0], room=0, seconds=2.0).loads == 0
