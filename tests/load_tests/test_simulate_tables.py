"""Whether a difference of two rules is more than noise."""

import pytest

from load_tests.simulate.rules import rule
from load_tests.simulate.tables import Result, beside, worst

VALUE = Result(rule("edf sizing=value"), worsts={1.0: [0.9, 0.7, 0.5]})
STEADY = Result(rule("edf"), worsts={1.0: [0.6, 0.6, 0.6]})
BEST = Result(rule("fair"), worsts={1.0: [0.8, 0.7, 0.6]})


def test_a_difference_is_that_of_equal_seeds_to_the_rule_that_fares_best_over_all_of_them():
    """The three differences are 10, 0 and -10 points; each rule alone scatters by twice as much."""
    found = beside([VALUE, STEADY, BEST], VALUE, 1.0)
    assert found is not None
    assert found.rule == "fair"
    assert found.mean == pytest.approx(0.0)
    assert found.noise == pytest.approx(2 * 0.1 / 3**0.5)
    assert "+0.0 ± 11.5" in worst([VALUE, STEADY, BEST])


def test_rules_of_value_are_not_what_value_is_set_against():
    assert beside([VALUE, Result(rule("fair sizing=value"), worsts={1.0: [1.0] * 3})], VALUE, 1.0) is None
