"""What no rule exceeds: exact where it can be counted by hand, above every rule, and as tight as it claims."""

import numpy as np
import pytest

from load_tests.simulate import bound
from load_tests.simulate.bound import most_in_time, r99_bound
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.rules import rule
from load_tests.simulate.run import simulate
from load_tests.simulate.scenarios import SCENARIOS, Scenario


def one_model(monkeypatch, arrivals, *others, **facts):
    """A scenario whose only model gets requests at these milliseconds; so many of `others` have none."""
    model = SimulatedModel("m", **{"fixed_ms": 10, "row_ms": 0, "deadline_ms": 25, "sizes": (1, 2), **facts})
    times = np.array(arrivals) / 1e3
    monkeypatch.setattr(bound, "arriving", lambda *_: (times, np.zeros(len(times), int)))
    return Scenario("x", "x", (model, *others), "poisson", 1.0, 1.0)


@pytest.mark.parametrize(
    ("arrivals", "sizes", "most"),
    [
        ([], (1, 2), 0),
        ([0], (1, 2), 1),
        ([0, 0, 0, 0], (1,), 2),  # the third would end at 30
        ([0, 0, 0, 0, 0], (1, 2), 4),
        ([0, 5, 20, 24], (1, 2), 4),
        ([0, 16, 16.5, 17], (1,), 3),  # after the first, those at 16 and 16.5 or 17 end at 26 and 36, and one misses
        ([0, 0, 0, 10, 10, 10], (1, 2), 6),
    ],
)
def test_the_best_plan_of_one_model_is_what_counting_gives(monkeypatch, arrivals, sizes, most):
    assert most_in_time(one_model(monkeypatch, arrivals, sizes=sizes), 1.0, 1) == most


def test_of_several_models_each_request_costs_its_part_of_the_cheapest_batch_it_can_be_in(monkeypatch):
    """A second and 25 ms hold 102 executions of 10 ms, so 204 requests where all come in pairs, 102 where none does."""
    idle = SimulatedModel("idle", 1, 1, 20)
    pairs = [at for at in range(0, 10_000, 30) for _ in range(2)]
    assert most_in_time(one_model(monkeypatch, pairs, idle), 1.0, 1) == 204
    assert most_in_time(one_model(monkeypatch, list(range(0, 10_000, 30)), idle), 1.0, 1) == 102


@pytest.mark.parametrize("name", ["S1", "S3", "M1", "C2"])
@pytest.mark.parametrize("text", ["edf", "edf sizing=value", "fair max_wait_ms=5"])
def test_no_rule_exceeds_the_bound(name, text):
    scenario = SCENARIOS[name]
    rate = 1.5 * scenario.rate
    found = simulate(scenario, rule(text), rate, 3).in_time
    assert 0.5 * most_in_time(scenario, rate, 3) < found <= most_in_time(scenario, rate, 3)


def test_the_bound_of_r99_lies_above_what_value_reaches():
    assert 360 < r99_bound(SCENARIOS["S1"], [1, 2]) < 420
