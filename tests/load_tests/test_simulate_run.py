"""Simulations small enough to follow by hand, and what must hold of all of them."""

from math import inf

import numpy as np
import pytest

from load_tests.simulate.device import Noise
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.outcome import pooled
from load_tests.simulate.rules import DEFAULTS, rule
from load_tests.simulate.run import Circumstances, arriving, replay, simulate
from load_tests.simulate.scenarios import SCENARIOS, SHARES, Scenario

PLAIN = "fifo shed=edf sizing=fill admission=off"


def scenario(*models, arrivals="poisson", rate=100.0, seconds=1.0):
    return Scenario("T", "for tests", models, arrivals, rate, seconds)


def model(fixed_ms=10.0, row_ms=0.0, deadline_ms=inf, sizes=(1,), name="m", **facts):
    return SimulatedModel(name, fixed_ms, row_ms, deadline_ms, sizes=sizes, **facts)


def at(*milliseconds, owners=None):
    """Arrivals at these instants, of the first model unless told."""
    return np.array(milliseconds) / 1e3, np.array(owners or [0] * len(milliseconds))


def run(arriving, *models, text=PLAIN, **circumstances):
    most_missed = circumstances.pop("most_missed", inf)
    where = Circumstances(**circumstances)
    return replay(scenario(*models), rule(text), arriving, 1, where, most_missed=most_missed)


def latencies(outcome, of=0):
    return [round(seconds * 1e3, 6) for seconds in outcome.models[of].latencies]


# by hand


def test_a_request_that_finds_the_device_free_takes_its_cost():
    outcome = run(at(*range(0, 1000, 20)), model(fixed_ms=8.0, row_ms=2.0))
    assert set(latencies(outcome)) == {10.0}
    assert outcome.goodput == 50.0
    assert outcome.utilisation == pytest.approx(0.5)


def test_what_arrives_while_the_device_is_busy_shares_the_next_execution():
    outcome = run(at(0, 1, 2), model(row_ms=1.0, sizes=(1, 2)))
    assert latencies(outcome) == [11.0, 22.0, 21.0]
    assert outcome.batch_sizes == {1: 1, 2: 1}
    assert outcome.rows_per_batch == 1.5


def test_rows_that_fill_no_size_are_padded():
    outcome = run(at(0, 1, 1, 1), model(sizes=(1, 4)), text="fifo sizing=cost admission=off")
    assert outcome.models[0].padded_rows == 1
    assert outcome.padding == pytest.approx(1 / 5)


def test_an_answer_after_the_deadline_is_late_and_in_no_goodput():
    outcome = run(at(0, 1), model(deadline_ms=15))
    assert (outcome.in_time, outcome.late, outcome.missed) == (1, 1, 1)
    assert outcome.goodput == 1.0
    assert latencies(outcome) == [10.0, 19.0]


def test_an_answer_at_the_deadline_is_in_time():
    assert run(at(0), model(deadline_ms=10)).in_time == 1


def test_what_expires_in_the_queue_is_dropped_even_while_the_device_is_busy():
    outcome = run(at(0, 1, 7), model(deadline_ms=5), text="fifo shed=edf admission=off max_queue_depth=1")
    assert outcome.drops == {"expired_queue": 1}  # at 6 ms, and so the one of 7 ms finds room
    assert outcome.late == 2


def test_what_could_only_be_late_is_shed():
    outcome = run(at(0, 1), model(deadline_ms=15), text="edf admission=off")
    assert outcome.drops == {"infeasible_dispatch": 1}


def test_what_could_only_be_late_is_refused_on_arrival():
    outcome = run(at(0, 1), model(deadline_ms=15), text="fifo admission=floor")
    assert outcome.drops == {"infeasible_admission": 1}
    assert outcome.missed == 1


def test_the_scheduler_sees_an_arrival_when_it_comes_not_when_the_device_is_free():
    slow = Noise(0.0, 1.0)  # 30 ms, where 10 are expected
    outcome = run(at(0, 1), model(deadline_ms=25), text="fifo admission=floor", noise=slow)
    assert outcome.drops == {"expired_queue": 1}


def test_a_full_queue_refuses():
    assert run(at(0, 1, 2, 3), model(), text="fifo max_queue_depth=1").drops == {"queue_full": 2}


def test_a_queue_that_waits_for_company_is_asked_when_it_opens():
    alone = run(at(0), model(row_ms=1.0, sizes=(1, 2)), text=f"{PLAIN} max_wait_ms=5")
    assert latencies(alone) == [16.0]
    accompanied = run(at(0, 3), model(row_ms=1.0, sizes=(1, 2)), text=f"{PLAIN} max_wait_ms=5")
    assert latencies(accompanied) == [15.0, 12.0]


def test_under_edf_the_sooner_deadline_runs_first():
    models = model(deadline_ms=100, name="slow"), model(deadline_ms=30, name="urgent")
    arrivals = at(0, 1, 2, owners=[0, 0, 1])
    assert latencies(run(arrivals, *models, text="edf"), of=1) == [18.0]
    assert latencies(run(arrivals, *models, text="fifo"), of=1) == [28.0]


def test_every_execution_may_be_an_outlier():
    assert latencies(run(at(0), model(), noise=Noise(0.0, 1.0))) == [30.0]


def test_a_hopeless_simulation_is_given_up():
    arrivals = at(*range(1000))
    assert run(arrivals, model(deadline_ms=15)).missed > 800
    assert 10 < run(arrivals, model(deadline_ms=15), most_missed=10).missed <= 20


# in general


def test_a_backlogged_model_runs_full_batches_without_a_pause():
    one = model(row_ms=1.0, sizes=(1, 4, 16))
    outcome = simulate(scenario(one, arrivals="backlogged", seconds=60.0), rule("fair"), 0.0, 1)
    assert outcome.models[0].rows / outcome.ended_at == pytest.approx(16 / one.seconds(16), rel=0.02)
    assert outcome.utilisation == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4"])
def test_backlogged_models_share_the_device_by_weight(name):
    outcome = simulate(SHARES[name], rule("fair"), 0.0, 1)
    total = sum(each.weight for each in SHARES[name].models)
    assert outcome.shares == pytest.approx([each.weight / total for each in SHARES[name].models], abs=0.01)
    assert outcome.fairness == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize("text", DEFAULTS)
@pytest.mark.parametrize("name", [*SCENARIOS, "F1", "F2"])
def test_every_request_is_answered_or_dropped_for_one_reason(name, text):
    tried = {**SCENARIOS, **SHARES}[name]
    tried = Scenario(name, tried.title, tried.models, tried.arrivals, tried.rate, 500 / tried.rate)
    circumstances = Circumstances(Noise(0.1, 0.02))
    outcome = simulate(tried, rule(text), 2 * tried.rate, 3, circumstances)
    arrivals, owners = arriving(tried, 2 * tried.rate, 3)
    assert [each.arrived for each in outcome.models] == list(np.bincount(owners, minlength=len(tried.models)))
    for each in outcome.models:
        assert each.arrived == each.in_time + each.late + sum(each.drops.values())
        assert len(each.latencies) == each.in_time + each.late == each.rows
    assert outcome.missed == outcome.late + outcome.drops.total()
    assert sum(each.busy for each in outcome.models) <= outcome.ended_at + 1e-9
    assert 0 < outcome.in_time < len(arrivals)


@pytest.mark.parametrize("text", ["fair", "edf max_wait_ms=5"])
def test_equal_arguments_have_equal_outcomes(text):
    circumstances = Circumstances(Noise(0.1, 0.01))
    first, again, other = [simulate(SCENARIOS["C2"], rule(text), 1500.0, seed, circumstances) for seed in (1, 1, 2)]
    assert first == again
    assert first != other


def test_noise_repeats_with_the_seed_and_is_centred():
    quiet = model(fixed_ms=1.0)
    arrivals = at(*range(0, 40_000, 20))
    first, again = [np.array(latencies(run(arrivals, quiet, noise=Noise(0.2)))) for _ in range(2)]
    assert np.array_equal(first, again)
    assert np.log(first).std() == pytest.approx(0.2, rel=0.1)
    assert np.median(first) == pytest.approx(1.0, rel=0.03)


def test_several_simulations_are_pooled_as_one_long_one():
    parts = [simulate(SCENARIOS["M1"], rule("edf"), 2200.0, seed) for seed in (1, 2)]
    whole = pooled(parts)
    assert whole.seconds == 10.0
    assert whole.arrived == sum(part.arrived for part in parts)
    assert whole.goodput == pytest.approx(sum(part.goodput for part in parts) / 2)
    assert whole.drops == parts[0].drops + parts[1].drops
    assert min(part.latency(0.5) for part in parts) <= whole.latency(0.5) <= max(part.latency(0.5) for part in parts)
