"""Budgets and evictions by example and by property."""

from fractions import Fraction
from itertools import combinations
from math import floor, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.residency import (
    LONGEST_COLD,
    Budget,
    LoadPlan,
    Resident,
    Wanted,
    budget,
    load_order,
    plan_eviction,
    plan_load,
    plan_room,
)
from tests.scheduling.simulation import PATIENT

GIB = 1 << 30

#: arena, fraction, wiggle, scratch, pinned → ceiling, pool, on demand
BUDGETS = [
    ((1000, 1.0, 0.1, 300, 200), (900, 600, 400)),
    ((1000, 1.0, 0.1, 300, 700), (900, 600, 0)),
    ((1000, 1.0, 0.1, 0, 0), (900, 900, 900)),
    ((1000, 1.0, 0.0, 0, 0), (1000, 1000, 1000)),
    ((1000, 0.5, 0.1, 0, 0), (900, 500, 500)),
    ((1000, 0.5, 0.1, 400, 0), (900, 500, 500)),
    ((1000, 0.5, 0.1, 401, 0), (900, 499, 499)),
    ((1000, 0.5, 0.1, 900, 0), (900, 0, 0)),
    ((1000, 0.5, 0.1, 1000, 0), (900, 0, 0)),
    ((1000, 0.0, 0.1, 0, 0), (900, 0, 0)),
    ((1000, 0.0, 0.1, 0, 100), (900, 0, 0)),
    ((1000, 0.9, 0.1, 0, 0), (900, 900, 900)),
    ((1000, 0.7, 0.3, 0, 0), (700, 700, 700)),
    ((10, 1.0, 0.1, 0, 0), (9, 9, 9)),
    ((1, 1.0, 0.1, 0, 0), (0, 0, 0)),
    ((0, 1.0, 0.1, 0, 0), (0, 0, 0)),
    ((1001, 1.0, 0.1, 0, 0), (900, 900, 900)),
    ((999, 0.333, 0.1, 0, 0), (899, 332, 332)),
    ((1000, 1.0, 0.1, 300, 600), (900, 600, 0)),
    ((1000, 1.0, 0.1, 300, 599), (900, 600, 1)),
    ((24 * GIB, 1.0, 0.1, 2 * GIB, 5 * GIB), (23192823398, 21045339750, 15676630630)),
    ((10**18 + 1, 1.0, 0.1, 0, 0), (900000000000000000, 900000000000000000, 900000000000000000)),
]


@pytest.mark.parametrize(("given_", "expected"), BUDGETS)
def test_the_budget_table(given_, expected):
    arena, fraction, wiggle, scratch, pinned = given_
    assert budget(arena, fraction=fraction, wiggle=wiggle, scratch=scratch, pinned=pinned) == Budget(*expected)


@PATIENT
@given(st.integers(0, 10**12), st.integers(0, 100), st.integers(0, 99), st.integers(0, 10**12), st.integers(0, 10**12))
def test_budgets_are_exact_in_decimal(arena, fraction, wiggle, scratch, pinned):
    found = budget(arena, fraction=fraction / 100, wiggle=wiggle / 100, scratch=scratch, pinned=pinned)
    assert found.ceiling == floor(Fraction(100 - wiggle, 100) * arena)
    assert found.pool == max(min(floor(Fraction(fraction, 100) * arena), found.ceiling - scratch), 0)
    assert found.on_demand == max(found.pool - pinned, 0)


def on_device(*facts, **common):
    """(name, bytes, used at) each."""
    return [Resident(name, nbytes, used_at, **common) for name, nbytes, used_at in facts]


def test_room_for_two_and_a_b_a_c_evicts_b():
    assert plan_eviction(on_device(("a", 1, 3.0), ("b", 1, 2.0)), needed=1, free=0) == ("b",)


@pytest.mark.parametrize(
    ("needed", "free", "victims"),
    [
        (0, 0, ()),
        (5, 5, ()),
        (6, 5, ("old",)),
        (15, 5, ("old",)),
        (16, 5, ("big",)),  # the old one would not do, and beside the big one it may stay
        (105, 5, ("big",)),
        (106, 5, ("old", "big")),
        (116, 5, ("big", "new")),
        (126, 5, ("old", "big", "new")),
        (136, 5, None),
    ],
)
def test_as_few_leave_as_it_takes_the_least_recently_used_first(needed, free, victims):
    residents = on_device(("new", 20, 9.0), ("old", 10, 1.0), ("big", 100, 5.0))
    assert plan_eviction(residents, needed, free) == victims


RESIDENTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=6).map(
    lambda facts: on_device(*[(f"m{index}", size, float(used)) for index, (size, used) in enumerate(facts)])
)


@PATIENT
@given(RESIDENTS, st.integers(0, 40), st.integers(0, 10))
def test_victims_are_enough_and_none_is_spare(residents, needed, free):
    victims = plan_eviction(residents, needed, free)
    sizes = {each.model_id: each.nbytes for each in residents}
    if victims is None:
        assert free + sum(sizes.values()) < needed
        return
    freed = free + sum(sizes[name] for name in victims)
    assert freed >= needed
    assert all(freed - sizes[name] < needed for name in victims)
    assert all(
        free + sum(sizes[name] for name in fewer) < needed
        for count in range(len(victims))
        for fewer in combinations(victims, count)
    )


def test_idle_models_leave_before_those_with_work():
    idle, busy = Resident("idle", 1, used_at=9.0), Resident("busy", 1, used_at=1.0, queued=True)
    assert plan_load(1, [idle, busy], 2, now=10.0) == LoadPlan(("idle",))
    assert plan_load(2, [idle, busy], 2, now=10.0) == LoadPlan(("busy", "idle"))


@pytest.mark.parametrize(("worked", "queued"), [(True, True), (False, False)])
def test_a_model_that_was_just_loaded_stays_for_twice_its_load_time(worked, queued):
    fresh = Resident("fresh", 1, used_at=5.0, loaded_at=5.0, load_seconds=0.5, worked=worked, queued=queued)
    assert plan_load(1, [fresh], 1, now=5.9) == LoadPlan(None, 6.0)
    assert plan_load(1, [fresh], 1, now=6.0) == LoadPlan(("fresh",))


@pytest.mark.parametrize(
    ("load_seconds", "leaves_at"),
    [
        (2.0, 5.7),  # a quarter of its load after its last work
        (0.04, 5.08),  # twice its load after it was loaded
        (0.2, 5.25),
        (0.15, 5.2375),
        (0.05, 5.1),
    ],
)
def test_a_model_that_has_nothing_more_to_do_leaves_earlier_if_no_other_will_do(load_seconds, leaves_at):
    idle = Resident("idle", 1, used_at=5.2, loaded_at=5.0, load_seconds=load_seconds)
    plan = plan_load(1, [idle], 1, now=5.05)
    assert plan.victims is None
    assert plan.look_again_at == pytest.approx(leaves_at)
    assert plan_load(1, [idle], 1, now=plan.look_again_at) == LoadPlan(("idle",))


def test_a_model_stays_for_as_long_as_clients_take_to_ask_again():
    idle = Resident("idle", 1, used_at=5.0, loaded_at=5.0, load_seconds=0.02)
    assert plan_load(1, [idle], 1, now=5.01) == LoadPlan(None, 5.02)


def test_a_model_with_work_stays_until_it_has_done_some():
    waiting = Resident("waiting", 1, used_at=0.0, loaded_at=0.0, load_seconds=0.1, worked=False, queued=True)
    assert plan_load(1, [waiting], 1, now=100.0) == LoadPlan(None, inf)
    given_up = Resident("waiting", 1, used_at=0.0, loaded_at=0.0, load_seconds=0.1, worked=False, queued=False)
    assert plan_load(1, [given_up], 1, now=100.0) == LoadPlan(("waiting",))


@pytest.mark.parametrize("load_seconds", [1.0, 0.4])
def test_another_that_will_do_leaves_instead_of_a_fresh_one(load_seconds):
    fresh = Resident("fresh", 1, used_at=5.0, loaded_at=5.0, load_seconds=load_seconds)
    other = Resident("other", 1, used_at=5.5)
    assert plan_load(1, [fresh, other], 2, now=5.6) == LoadPlan(("other",))
    assert plan_load(2, [fresh, other], 2, now=5.6).victims == ("fresh", "other")


def test_a_fresh_one_without_work_leaves_before_an_old_one_with_work():
    fresh = Resident("fresh", 1, used_at=5.0, loaded_at=5.0, load_seconds=0.4)
    busy = Resident("busy", 1, used_at=1.0, queued=True)
    assert plan_load(1, [fresh, busy], 2, now=5.2) == LoadPlan(("fresh",))


def test_bytes_of_those_that_stay_are_no_room():
    a, b = on_device(("a", 1, 0.0), ("b", 1, 1.0))
    assert plan_load(1, [a, b], 4, now=2.0, taken=1) == LoadPlan(())
    assert plan_load(1, [a, b], 4, now=2.0, taken=2) == LoadPlan(("a",))
    assert plan_load(9, [a, b], 4, now=2.0, taken=2) == LoadPlan(None, inf)


def test_free_room_is_used_before_anyone_leaves():
    assert plan_load(3, on_device(("a", 2, 0.0)), 5, now=1.0) == LoadPlan(())


def test_a_model_larger_than_the_budget_comes_alone():
    residents = on_device(("a", 1, 0.0), ("b", 1, 1.0))
    assert plan_load(9, residents, 4, now=2.0) == LoadPlan(("a", "b"))
    assert plan_load(9, [], 4, now=2.0) == LoadPlan(())
    assert plan_load(9, [], 0, now=2.0) == LoadPlan(())
    fresh = Resident("fresh", 1, used_at=1.5, loaded_at=1.5, load_seconds=1.0, queued=True)
    assert plan_load(9, [*residents, fresh], 4, now=2.0) == LoadPlan(None, 3.5)


def test_an_operators_load_waits_for_nobody():
    fresh = Resident("fresh", 1, used_at=5.0, loaded_at=5.0, load_seconds=9.0, worked=False, queued=True)
    idle = Resident("idle", 1, used_at=6.0)
    assert plan_room(1, [fresh, idle], 2) == ("idle",)
    assert plan_room(2, [fresh, idle], 2) == ("fresh", "idle")
    assert plan_room(9, [fresh, idle], 2) == ("fresh", "idle")


@PATIENT
@given(
    st.lists(
        st.builds(
            Resident,
            model_id=st.sampled_from("abcdef"),
            nbytes=st.integers(1, 5),
            used_at=st.integers(0, 9).map(float),
            loaded_at=st.integers(0, 9).map(float),
            load_seconds=st.integers(0, 3).map(float),
            worked=st.booleans(),
            queued=st.booleans(),
        ),
        max_size=5,
        unique_by=lambda each: each.model_id,
    ),
    st.integers(1, 12),
    st.integers(0, 12),
    st.integers(9, 16).map(float),
)
def test_a_plan_fits_and_touches_nobody_who_must_stay(residents, needed, on_demand, now):
    plan = plan_load(needed, residents, on_demand, now)
    known = {each.model_id: each for each in residents}
    if plan.victims is None:
        assert plan.look_again_at > now
        return
    assert all(known[name].leaves_at() <= now for name in plan.victims)
    fresh = [known[name] for name in plan.victims if known[name].settled_at() > now]
    others = [each for each in residents if each.settled_at() <= now and not each.queued]
    # Freshly loaded ones leave only if all that are longer there, and have no work, would not do.
    assert not fresh or sum(each.nbytes for each in residents if each not in others) + needed > on_demand
    left = sum(each.nbytes for each in residents if each.model_id not in plan.victims)
    assert left + needed <= on_demand or left == 0


# which one comes


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Wanted("b", 3, 4.0, 0.1), Wanted("a", 2, 4.0, 0.1)),  # more rows
        (Wanted("b", 2, 3.0, 0.1), Wanted("a", 2, 4.0, 0.1)),  # waiting for longer
        (Wanted("b", 2, 4.0, 0.1), Wanted("a", 2, 4.0, 0.2)),  # sooner there
        (Wanted("b", 9, 4.0, 0.2), Wanted("a", 4, 4.0, 0.1)),  # more rows per second of load
        (Wanted("b", 1, 4.0, 0.0), Wanted("a", 9, 4.0, 0.1)),  # nobody knows what it takes
        (Wanted("b", 1, 4.0, 0.2, committed=True), Wanted("a", 9, -90.0, 0.1)),
        (Wanted("b", 1, -5.1, 9.0), Wanted("a", 9, -4.9, 0.1)),  # has waited for too long
        (Wanted("b", 1, -9.0, 9.0), Wanted("a", 9, -8.0, 0.1)),  # both have
        (Wanted("a", 1, 5.0, 0.1), Wanted("b", 1, 5.0, 0.1)),  # by name, in the end
    ],
)
def test_weights_come_first_where_a_load_gains_most_unless_someone_waits_too_long(first, second):
    assert load_order([second, first], now=5.0) == (first.model_id, second.model_id)


@PATIENT
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0.01, 1.0), st.floats(0.0, 30.0)), min_size=2, max_size=8),
)
def test_once_a_model_has_waited_too_long_each_other_is_loaded_at_most_once_before_it(facts):
    """Room for one, and all have work at any time."""
    since = {f"m{place}": now for place, (_, _, now) in enumerate(facts)}
    now, overtaken = 30.0, 0
    while True:
        wanted = [Wanted(f"m{place}", rows, since[f"m{place}"], load) for place, (rows, load, _) in enumerate(facts)]
        first = next(each for each in wanted if each.model_id == load_order(wanted, now)[0])
        if first.model_id == "m0":
            return
        overtaken += now - since["m0"] > LONGEST_COLD
        assert overtaken < len(facts)
        now += first.load_seconds
        since[first.model_id] = now
