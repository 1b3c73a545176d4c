"""The exact edges of batch planning."""

import pytest

from app.scheduling.coalescing import BatchPlan, plan_batch, split_rows


@pytest.mark.parametrize(
    ("sizes", "rows", "cap", "size", "take"),
    [
        ((1, 4, 8), (2, 2, 2), None, 4, 2),
        ((4, 8), (1,), None, 4, 1),
        ((1, 4, 8), (6, 1), None, 8, 2),
        ((1, 4, 8), (1, 1, 1), None, 1, 1),
        ((1, 4, 8), (2, 2, 2, 2), 4, 4, 2),
        ((4, 8), (1, 1, 1), 2, 4, 2),
        ((1, 4, 8), (6, 1), 2, 8, 1),
        ((1, 4, 8), (1, 8), None, 1, 1),
        ((8,), (5, 4, 1), None, 8, 1),
        ((1, 2, 4, 8, 16, 32), (1,) * 31, None, 16, 16),
        ((1, 4, 8), (3, 1, 4), None, 8, 3),
        ((1, 4, 8), (2,), 2, 4, 1),
        ((1, 4, 8), (2, 1), 2, 4, 1),
        ((1, 2, 4), (1,) * 40, 3, 2, 2),
        ((4, 8), (1,) * 5, 3, 4, 3),
        ((1, 4, 8), (8, 1), None, 8, 1),
        ((1, 4, 8), (1,) * 100, None, 8, 8),
    ],
)
def test_fill_takes_the_largest_size_that_the_rows_fill(sizes, rows, cap, size, take):
    assert plan_batch(rows, sizes, cap=cap) == BatchPlan(take, size, sum(rows[:take]))


def test_a_front_that_no_size_holds_goes_alone_at_its_own_row_count():
    assert plan_batch((9, 1), (1, 4, 8)) == BatchPlan(1, 9, 9)
    assert plan_batch((9, 1), (1, 4, 8), cap=2, sizing="cost", cost={8: 1.0}.get) == BatchPlan(1, 9, 9)


def test_cost_takes_a_padded_batch_that_beats_singles():
    costs = {1: 10.0, 4: 12.0, 8: 20.0}
    assert plan_batch((1, 1, 1), (1, 4, 8), sizing="cost", cost=costs.get) == BatchPlan(3, 4, 3)


def test_cost_serves_a_model_whose_large_batches_are_slower_per_row_in_small_ones():
    costs = {1: 1.0, 4: 5.0, 8: 20.0}
    assert plan_batch((1,) * 8, (1, 4, 8), sizing="cost", cost=costs.get) == BatchPlan(1, 1, 1)


def test_cost_prefers_the_larger_size_when_rows_cost_the_same():
    costs = {1: 1.0, 2: 2.0, 4: 4.0}
    assert plan_batch((1,) * 4, (1, 2, 4), sizing="cost", cost=costs.get) == BatchPlan(4, 4, 4)


def test_cost_is_fill_while_a_cost_that_it_needs_is_unknown():
    known = {1: 1.0, 8: 0.1}
    assert plan_batch((1,) * 3, (1, 4, 8), sizing="cost", cost=known.get) == BatchPlan(1, 1, 1)
    assert plan_batch((1,) * 3, (1, 4, 8), sizing="cost") == BatchPlan(1, 1, 1)


def test_cost_does_not_need_the_cost_of_sizes_that_it_would_not_run():
    known = {1: 1.0, 4: 2.0}
    assert plan_batch((1,) * 3, (1, 4, 8), sizing="cost", cost=known.get) == BatchPlan(3, 4, 3)


def test_cost_respects_the_cap_and_counts_only_the_rows_under_it():
    costs = {1: 1.0, 4: 1.5, 8: 1.6}
    assert plan_batch((1,) * 8, (1, 4, 8), cap=2, sizing="cost", cost=costs.get) == BatchPlan(2, 4, 2)
    assert plan_batch((6, 1), (1, 4, 8), cap=2, sizing="cost", cost=costs.get) == BatchPlan(1, 8, 6)


def test_cost_serves_a_front_larger_than_the_cheapest_size():
    costs = {1: 1.0, 4: 40.0, 8: 80.0}
    assert plan_batch((3, 1, 1), (1, 4, 8), sizing="cost", cost=costs.get) == BatchPlan(2, 4, 4)


def test_a_chosen_size_overrides_the_sizing_and_still_serves_the_front():
    costs = {1: 1.0, 4: 40.0, 8: 80.0}
    assert plan_batch((1,) * 9, (1, 4, 8), sizing="cost", cost=costs.get, chosen=4) == BatchPlan(4, 4, 4)
    assert plan_batch((6, 1, 1), (1, 4, 8), chosen=1) == BatchPlan(3, 8, 8)
    assert plan_batch((1, 8), (1, 4, 8), chosen=8) == BatchPlan(1, 1, 1)


@pytest.mark.parametrize(
    ("rows", "largest", "pieces"), [(20, 8, [8, 8, 4]), (16, 8, [8, 8]), (3, 8, [3]), (8, 8, [8]), (3, 1, [1, 1, 1])]
)
def test_an_oversized_request_is_cut_into_full_pieces_and_a_rest(rows, largest, pieces):
    assert split_rows(rows, largest) == pieces
