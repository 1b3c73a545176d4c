"""Batch planning against an independent reference, over domains small enough to be exhausted."""

from hypothesis import event, given, settings
from hypothesis import strategies as st

from app.scheduling.coalescing import plan_batch, split_rows
from tests.scheduling.simulation import PATIENT

ROWS = st.lists(st.sampled_from([1, 1, 1, 2, 2, 3, 5]), min_size=1, max_size=9)
SIZES = st.sets(st.sampled_from([1, 2, 3, 4, 8]), min_size=1).map(sorted)
CAP = st.none() | st.integers(1, 9)
COST = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 9.0])
COSTS = st.fixed_dictionaries(dict.fromkeys((1, 2, 3, 4, 8), COST)) | st.dictionaries(
    st.sampled_from([1, 2, 3, 4, 8]), COST
)


def prefix_up_to(rows, limit):
    """How many leading requests fit into `limit` rows, the front always."""
    take = 1
    while take < len(rows) and sum(rows[: take + 1]) <= limit:
        take += 1
    return take


def holding(rows, sizes):
    return next((size for size in sizes if size >= rows), None)


def at_size(rows, target, sizes, cap):
    """The rule that both sizings share, step by step: grow to the front, take, shrink to what was taken."""
    target = max(target, holding(rows[0], sizes))
    take = prefix_up_to(rows, target if cap is None else min(target, cap))
    taken = sum(rows[:take])
    return take, holding(taken, sizes), taken


def fill_reference(rows, sizes, cap):
    if holding(rows[0], sizes) is None:
        return 1, rows[0], rows[0]
    available = sum(rows) if cap is None else min(sum(rows), cap)
    filled = [size for size in sizes if size <= available]
    return at_size(rows, filled[-1] if filled else sizes[0], sizes, cap)


def cost_reference(rows, sizes, cap, costs):
    if holding(rows[0], sizes) is None:
        return 1, rows[0], rows[0]
    plans = {at_size(rows, target, sizes, cap) for target in sizes}
    if any(size not in costs for _, size, _ in plans):
        return fill_reference(rows, sizes, cap)
    return min(plans, key=lambda plan: (costs[plan[1]] / plan[2], -plan[2]))


@settings(PATIENT, max_examples=600)
@given(ROWS, SIZES, CAP)
def test_fill_is_the_reference(rows, sizes, cap):
    plan = plan_batch(rows, sizes, cap=cap)
    event(f"take {plan.take}")
    assert plan == fill_reference(rows, sizes, cap)


@settings(PATIENT, max_examples=600)
@given(ROWS, SIZES, CAP, COSTS)
def test_cost_is_the_reference(rows, sizes, cap, costs):
    plan = plan_batch(rows, sizes, cap=cap, sizing="cost", cost=costs.get)
    event(f"take {plan.take}")
    assert plan == cost_reference(rows, sizes, cap, costs)


@PATIENT
@given(ROWS, SIZES, CAP, COSTS, st.sampled_from(["fill", "cost"]), st.data())
def test_a_plan_is_a_legal_dispatch_whatever_chose_it(rows, sizes, cap, costs, sizing, data):
    chosen = data.draw(st.none() | st.sampled_from(sizes))
    plan = plan_batch(rows, sizes, cap=cap, sizing=sizing, cost=costs.get, chosen=chosen)
    assert 1 <= plan.take <= len(rows)
    assert plan.rows == sum(rows[: plan.take])
    if rows[0] > sizes[-1]:
        assert plan == (1, rows[0], rows[0])
    else:
        assert plan.size == holding(plan.rows, sizes)
        assert cap is None or plan.rows <= cap or plan.take == 1


@PATIENT
@given(st.integers(1, 200), st.integers(1, 40))
def test_pieces_are_full_but_the_last_and_add_up(rows, largest):
    pieces = split_rows(rows, largest)
    assert sum(pieces) == rows
    assert all(piece == largest for piece in pieces[:-1])
    assert 1 <= pieces[-1] <= largest
