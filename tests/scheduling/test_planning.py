"""The small rules that planning is made of."""

import pytest

from app.domain.config import ModelPolicy
from app.scheduling.planning import merge_cap, timely_sizes, usable_size
from tests.builders import spec


@pytest.mark.parametrize(
    ("of_model", "of_policy", "cap"), [(None, None, None), (3, None, 3), (None, 2, 2), (3, 2, 2), (2, 3, 2)]
)
def test_the_cap_is_the_tighter_of_model_and_policy(of_model, of_policy, cap):
    assert merge_cap(spec(max_batch_size=of_model), ModelPolicy(max_batch_size=of_policy)) == cap


@pytest.mark.parametrize(
    ("cap", "costs", "sizing", "usable"),
    [
        (None, {}, "fill", (8, 8)),
        (None, {1: 1.0, 4: 2.0, 8: 9.0}, "fill", (8, 8)),
        (None, {1: 1.0, 4: 2.0, 8: 9.0}, "cost", (4, 4)),
        (None, {1: 1.0, 4: 4.0, 8: 8.0}, "cost", (8, 8)),
        (None, {1: 1.0, 8: 1.0}, "cost", (8, 8)),
        (3, {}, "fill", (4, 3)),
        (3, {1: 1.0, 4: 2.0, 8: 2.0}, "cost", (4, 3)),
        (3, {1: 1.0, 4: 9.0, 8: 9.0}, "cost", (1, 1)),
        (99, {}, "fill", (8, 8)),
    ],
)
def test_the_usable_size_is_what_an_endless_queue_would_be_served_in(cap, costs, sizing, usable):
    assert usable_size((1, 4, 8), cap, costs, sizing) == usable


@pytest.mark.parametrize(
    ("front", "budget", "timely"),
    [(1, 9.0, (1, 2, 4)), (1, 3.0, (1, 2)), (1, 2.0, (1,)), (1, 0.5, (1,)), (2, 0.5, (1, 2)), (4, 0.5, (1, 2, 4))],
)
def test_sizes_that_take_longer_than_the_front_was_given_are_left_out(front, budget, timely):
    assert timely_sizes((1, 2, 4), {1: 1.0, 2: 2.0, 4: 3.0}, front, budget) == timely


def test_a_size_of_unknown_cost_is_not_left_out():
    assert timely_sizes((1, 2, 4), {1: 1.0}, 1, 0.5) == (1, 2, 4)
