"""Averages that the scheduler learns."""

from math import inf

import pytest

from app.scheduling.learning import CostBook, LearnedReserve, UsageLedger


def book():
    return CostBook(alpha=0.2)


def test_the_first_measurement_becomes_the_estimate_and_later_ones_are_blended_in():
    costs = book()
    costs.observe("m", "v", 4, 0.04, now=0.0)
    seen = [costs.estimate("m", "v", 4)]
    for _ in range(3):
        costs.observe("m", "v", 4, 0.01, now=1.0)
        seen.append(costs.estimate("m", "v", 4))
    assert seen == pytest.approx([0.04, 0.034, 0.0292, 0.02536])


def test_a_sample_far_above_the_estimate_counts_as_one_and_a_half_times_it():
    costs = book()
    costs.observe("m", "v", 1, 0.01, now=0.0)
    costs.observe("m", "v", 1, 10.0, now=1.0)
    assert costs.estimate("m", "v", 1) == pytest.approx(0.2 * 0.015 + 0.8 * 0.01)


def test_costs_are_kept_per_model_variant_and_size():
    costs = book()
    costs.observe("m", "v", 1, 0.01, now=0.0)
    assert costs.estimate("m", "v", 2) is None
    assert costs.estimate("m", "w", 1) is None
    assert costs.estimate("n", "v", 1) is None
    assert costs.costs("m") == {("v", 1): 0.01}


def test_the_least_cost_of_rows_is_that_of_the_cheapest_size_holding_them():
    costs = book()
    curve = costs.curve("m", "v")
    assert curve.least(2) == 0.0
    for size, seconds in ((1, 0.01), (4, 0.05), (8, 0.03)):
        costs.observe("m", "v", size, seconds, now=0.0)
    assert [curve.least(rows) for rows in (1, 2, 5, 9)] == [0.01, 0.03, 0.03, 0.0]


def test_the_stalest_size_is_the_one_measured_longest_ago_or_never():
    costs = book()
    costs.observe("m", "v", 1, 0.01, now=5.0)
    costs.observe("m", "v", 2, 0.01, now=3.0)
    assert costs.curve("m", "v").stalest([1, 2]) == 2
    assert costs.curve("m", "v").stalest([1, 2, 4]) == 4


def test_weight_loads_are_learned_apart_from_costs():
    costs = book()
    assert costs.estimate_load("m") == 0.0
    costs.observe_load("m", 1.0, now=0.0)
    costs.observe_load("m", 0.5, now=1.0)
    assert costs.estimate_load("m") == pytest.approx(0.9)
    assert costs.costs("m") == {}


def test_a_new_generation_inherits_only_what_it_has_not_measured_itself():
    costs = book()
    costs.observe("old", "v", 1, 0.01, now=0.0)
    costs.observe("old", "v", 2, 0.02, now=0.0)
    costs.observe_load("old", 1.0, now=0.0)
    costs.observe("new", "v", 2, 0.5, now=1.0)
    costs.carry_over("old", "new")
    assert costs.costs("new") == {("v", 1): 0.01, ("v", 2): 0.5}
    assert costs.estimate_load("new") == 1.0


def test_a_forgotten_model_starts_anew():
    costs = book()
    costs.observe("m", "v", 1, 0.01, now=0.0)
    costs.observe_load("m", 1.0, now=0.0)
    costs.forget("m")
    assert costs.costs("m") == {}
    assert costs.estimate_load("m") == 0.0


def test_charged_time_halves_every_halflife():
    ledger = UsageLedger(halflife=30.0)
    ledger.charge("a", 8.0, now=100.0)
    assert ledger.recent("a", 100.0) == pytest.approx(8.0)
    assert ledger.recent("a", 130.0) == pytest.approx(4.0)
    ledger.charge("a", 1.0, now=160.0)
    assert ledger.recent("a", 160.0) == pytest.approx(3.0)
    assert ledger.recent("b", 160.0) == 0.0


def test_standings_keep_their_ratios_while_time_passes():
    ledger = UsageLedger(halflife=1.0)
    ledger.charge("a", 2.0, now=0.0)
    ledger.charge("b", 1.0, now=1.0)
    assert ledger.standing("a") == pytest.approx(ledger.standing("b"))


def test_the_ledger_survives_far_more_halflives_than_a_float_can_count():
    ledger = UsageLedger(halflife=0.001)
    for second in range(100):
        ledger.charge("a", 0.5, now=float(second))
        ledger.charge("b", 1.5, now=float(second))
    assert ledger.recent("a", 99.0) == pytest.approx(0.5)
    assert ledger.standing("b") / ledger.standing("a") == pytest.approx(3.0)
    assert ledger.recent("a", 1e6) == 0.0
    assert ledger.standing("a") < inf


def test_ratios_survive_the_moving_of_the_origin():
    ledger = UsageLedger(halflife=1.0)
    ledger.charge("a", 1.0, now=0.0)
    ledger.charge("a", 1.0, now=499.0)
    ledger.charge("b", 1.0, now=501.0)
    assert ledger.standing("b") / ledger.standing("a") == pytest.approx(4.0)


def test_a_raised_standing_is_not_charged_time_and_is_never_lowered():
    ledger = UsageLedger(halflife=30.0)
    ledger.charge("a", 10.0, now=0.0)
    ledger.raise_standing("b", ledger.standing("a"), 0.25, now=0.0)
    assert ledger.standing("b") / ledger.standing("a") == pytest.approx(0.975)
    assert ledger.recent("b", 0.0) == 0.0
    before = ledger.standing("b")
    ledger.raise_standing("b", 0.0, 0.25, now=0.0)
    assert ledger.standing("b") == before


def test_a_long_pause_does_not_mix_the_units_of_what_is_compared():
    ledger = UsageLedger(halflife=1.0)
    ledger.charge("a", 1.0, now=0.0)
    ledger.raise_standing("b", ledger.standing("a"), 0.25, now=5000.0)
    assert ledger.standing("b") == 0.0


def test_a_forgotten_account_is_empty():
    ledger = UsageLedger(halflife=30.0)
    ledger.charge("a", 10.0, now=0.0)
    ledger.forget("a")
    assert ledger.recent("a", 0.0) == 0.0
    assert ledger.standing("a") == 0.0


def test_the_reserve_is_unknown_before_twenty_samples():
    reserve = LearnedReserve()
    for _ in range(19):
        reserve.observe(0.5)
    assert reserve.seconds == 0.0
    reserve.observe(0.5)
    assert reserve.seconds == 0.5


def test_the_reserve_is_the_95th_percentile_of_the_latest_samples():
    reserve = LearnedReserve()
    for sample in range(132):
        reserve.observe(float(sample))
    assert reserve.seconds == pytest.approx(125.0, abs=1.0)
    for _ in range(128):
        reserve.observe(0.25)
    assert reserve.seconds == 0.25
