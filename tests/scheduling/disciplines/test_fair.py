"""Device time by weight, on snapshots."""

import pytest

from app.domain.config import SchedulerConfig
from app.scheduling.disciplines import DISCIPLINES, Candidate
from app.scheduling.disciplines.fair import priority, select

CONFIG = SchedulerConfig()


def candidate(name="m", share=0.5, recent=0.5, cost=0.01, merges=False, oldest=0.0, waited=0.0):
    return Candidate(name, name, share, recent, cost, merges, oldest, float("inf"), waited)


@pytest.mark.parametrize(("recent", "cost", "expected"), [(0.7, 9, -27.78), (0.2, 27, 4.938), (0.1, 90, 2.593)])
def test_priority_is_the_clamped_distance_per_second_of_cost(recent, cost, expected):
    assert priority(candidate(share=1 / 3, recent=recent, cost=cost / 1e3), CONFIG) == pytest.approx(expected, rel=1e-3)


def test_merging_discounts_the_cost():
    alone = priority(candidate(recent=0.4), CONFIG)
    assert priority(candidate(recent=0.4, merges=True), CONFIG) == pytest.approx(alone / 0.9)
    undiscounted = SchedulerConfig(coalescing_discount=0.0)
    assert priority(candidate(recent=0.4, merges=True), undiscounted) == pytest.approx(alone)


def test_the_highest_priority_wins():
    first = candidate("a", share=1 / 3, recent=0.7, cost=0.009)
    second = candidate("b", share=1 / 3, recent=0.2, cost=0.027)
    third = candidate("c", share=1 / 3, recent=0.1, cost=0.090)
    assert select([first, second, third], CONFIG) is second


def test_ties_go_to_the_older_front_request_and_then_to_the_name():
    assert select([candidate("a", oldest=2.0), candidate("b", oldest=1.0)], CONFIG).name == "b"
    assert select([candidate("b"), candidate("a")], CONFIG).name == "a"


def test_a_dispatch_too_short_to_be_measured_is_not_free():
    free = candidate("a", share=0.5, recent=0.6, cost=0.0)
    assert select([free, candidate("b", share=0.5, recent=0.4)], CONFIG).name == "b"


def test_a_starving_contender_goes_first():
    favoured = candidate("a", share=0.9, recent=0.0)
    assert select([favoured, candidate("b", share=0.1, recent=1.0, waited=0.999)], CONFIG).name == "a"
    assert select([favoured, candidate("b", share=0.1, recent=1.0, waited=1.0)], CONFIG).name == "b"
    longest = candidate("c", share=0.1, recent=1.0, waited=2.0)
    assert select([favoured, candidate("b", share=0.1, recent=1.0, waited=1.5), longest], CONFIG).name == "c"


def test_a_small_share_has_to_wait_for_its_turn():
    assert (
        select(
            [candidate("a", share=0.95, recent=0.9), candidate("b", share=0.05, recent=0.1, waited=60.0)], CONFIG
        ).name
        == "a"
    )


def test_long_dispatches_let_their_model_wait_as_long_as_is_fair():
    favoured = candidate("a", share=0.8, recent=0.0)
    assert select([favoured, candidate("b", share=0.2, recent=1.0, cost=1.0, waited=9.9)], CONFIG).name == "a"
    assert select([favoured, candidate("b", share=0.2, recent=1.0, cost=1.0, waited=10.0)], CONFIG).name == "b"


def test_fair_is_in_the_table_and_never_sheds():
    assert DISCIPLINES["fair"].select is select
    assert not DISCIPLINES["fair"].by_deadline
