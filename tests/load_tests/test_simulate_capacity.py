"""The search for the highest rate that holds."""

from statistics import fmean

import pytest

from load_tests.simulate.capacity import attempt, highest, r99
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.rules import rule
from load_tests.simulate.run import ORDINARY
from load_tests.simulate.scenarios import SCENARIOS, Scenario


def held(scenario, tried, rate, seeds=(1,)):
    """The outcomes of a rate that holds."""
    outcomes = attempt(scenario, tried, rate, seeds, ORDINARY)
    assert outcomes is not None
    return outcomes


def test_the_highest_rate_is_found_to_one_percent():
    assert highest(lambda rate: rate <= 314.0, 10.0, 1000.0) == pytest.approx(314.0, rel=0.01)


def test_what_never_holds_is_zero_and_what_always_holds_is_the_most_that_was_tried():
    assert highest(lambda rate: False, 10.0, 1000.0) == 0.0
    assert highest(lambda rate: True, 10.0, 1000.0) == 1000.0


def test_steady_arrivals_can_be_borne_up_to_the_throughput_of_the_device():
    model = SimulatedModel("m", 10.0, 0.0, 15.0, sizes=(1,))
    steady = Scenario("T", "for tests", (model,), "steady", 80.0, 20.0)
    assert r99(steady, rule("fifo admission=off"), (1, 2)) == pytest.approx((100.0, 100.0), rel=0.02)


def test_what_r99_finds_holds_and_a_little_more_does_not():
    scenario, edf = SCENARIOS["S2"], rule("edf")
    found, _ = r99(scenario, edf, (1,))
    assert held(scenario, edf, found)[0].attainment >= 0.99
    assert attempt(scenario, edf, found * 1.1, (1,), ORDINARY) is None


def test_seeds_count_alike_however_many_requests_they_have():
    scenario, edf = SCENARIOS["C2"], rule("edf")
    found, _ = r99(scenario, edf, (1, 2))
    parts = [each.attainment for each in held(scenario, edf, found, (1, 2))]
    assert fmean(parts) >= 0.99
    assert min(parts) < 0.99


def test_every_model_holds_at_no_more_than_all_together_do():
    scenario, edf = SCENARIOS["C2"], rule("edf")
    together, every = r99(scenario, edf, (1,))
    assert 0 < every < together
    assert held(scenario, edf, every)[0].worst >= 0.99
    assert held(scenario, edf, together)[0].worst < 0.99
