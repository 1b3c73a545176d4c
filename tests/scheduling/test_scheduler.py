"""The scheduler's decisions: order, merging, expiry, withdrawal, and what is refused."""

from math import inf

import pytest

from app.domain.config import ModelPolicy
from app.domain.errors import DeadlineInfeasible, InvalidRequest, ModelNotFound, QueueFull
from app.domain.model import MergeKey, Variant
from tests.builders import request, spec, tensor
from tests.scheduling.simulation import burst, push, scheduler, seed, served

OTHER = MergeKey("default", (7,))


def test_nothing_queued_means_nothing_to_do_ever():
    decision = scheduler().next_decision(5.0)
    assert decision.dispatch is None
    assert decision.expired == ()
    assert decision.wake_at == inf


def test_a_burst_becomes_full_batches_in_order():
    made = scheduler()
    requests = push(made, *burst(7))
    taken = [made.next_decision(0.0).dispatch for _ in range(3)]
    assert [each.size for each in taken] == [4, 2, 1]
    assert [one for each in taken for one in each.requests] == list(requests)
    assert taken[0].rows == 4
    assert taken[0].variant == "default"
    assert made.next_decision(0.0).dispatch is None


def test_a_dispatch_asks_to_be_called_again_at_once():
    made = scheduler()
    push(made, *burst(1))
    assert made.next_decision(3.0).wake_at == 3.0


def test_only_the_leading_run_with_one_merge_key_merges():
    made = scheduler()
    a, b, c = push(made, request(), request(key=OTHER), request())
    assert [served(made.next_decision(0.0)) for _ in range(3)] == [[a], [b], [c]]


def test_requests_that_may_not_merge_go_alone():
    made = scheduler()
    push(made, *(request(key=MergeKey("default", alone=token)) for token in (1, 2)))
    assert [len(served(made.next_decision(0.0))) for _ in range(2)] == [1, 1]


def test_variants_have_their_own_sizes():
    model = spec("m", variants=(Variant("s", (1, 2), {}), Variant("l", (4,), {})))
    made = scheduler(model)
    push(made, *burst(3, key=MergeKey("s")), *burst(1, key=MergeKey("l")))
    assert [made.next_decision(0.0).dispatch.size for _ in range(3)] == [2, 1, 4]


def test_a_model_that_may_not_merge_runs_each_request_at_its_own_rows():
    made = scheduler(spec("m", batching=False))
    push(made, request(rows=3), request(rows=5))
    first, second = (made.next_decision(0.0).dispatch for _ in range(2))
    assert (first.size, first.rows, len(first.requests)) == (3, 3, 1)
    assert (second.size, second.rows, len(second.requests)) == (5, 5, 1)


def test_a_model_without_a_batch_axis_runs_one_request_at_a_time():
    made = scheduler(spec("m", outputs=(tensor("y", batch_axis=None),)))
    push(made, *burst(2))
    assert [made.next_decision(0.0).dispatch.size for _ in range(2)] == [1, 1]


def test_a_variant_without_compiled_sizes_runs_at_the_exact_row_count():
    made = scheduler(spec("m", sizes=()))
    push(made, request(rows=3), request(rows=2))
    assert [made.next_decision(0.0).dispatch.size for _ in range(2)] == [3, 2]


def test_a_request_that_no_size_holds_goes_alone():
    made = scheduler()
    push(made, request(rows=9), request())
    dispatch = made.next_decision(0.0).dispatch
    assert (dispatch.size, dispatch.rows, len(dispatch.requests)) == (9, 9, 1)


@pytest.mark.parametrize(
    ("of_model", "of_policy", "merged"), [(2, None, 2), (None, 2, 2), (4, 2, 2), (2, 4, 2), (None, None, 4)]
)
def test_the_tighter_cap_bounds_the_rows_merged(of_model, of_policy, merged):
    made = scheduler(spec("m", max_batch_size=of_model), policies={"m": ModelPolicy(max_batch_size=of_policy)})
    push(made, *burst(8))
    assert len(served(made.next_decision(0.0))) == merged


def test_a_new_policy_holds_for_what_is_already_queued():
    made = scheduler()
    push(made, *burst(8))
    assert len(served(made.next_decision(0.0))) == 4
    made.set_policy("m", ModelPolicy(max_batch_size=1))
    assert len(served(made.next_decision(0.0))) == 1


def test_newcomers_join_the_next_dispatch():
    made = scheduler()
    push(made, *burst(1))
    made.next_decision(0.0)
    push(made, *burst(4), now=1.0)
    assert len(served(made.next_decision(2.0))) == 4


def test_newcomers_join_a_batch_that_was_already_planned():
    made = scheduler("a", "b", discipline="fifo")
    push(made, request("a"), request("b", enqueued_at=1.0), now=1.0)
    assert made.next_decision(1.0).dispatch.model_id == "a"
    push(made, request("b", enqueued_at=2.0), now=2.0)
    assert len(served(made.next_decision(2.0))) == 2


# committed work


def test_committed_work_is_served_before_the_discipline_chooses_in_order_of_arrival():
    made = scheduler("a", "b", "c")
    push(made, *burst(2, "a"))
    (late,) = push(made, request("b", committed=True, enqueued_at=2.0))
    (early,) = push(made, request("c", committed=True, enqueued_at=1.0))
    assert [served(made.next_decision(3.0)) for _ in range(2)] == [[early], [late]]
    assert made.next_decision(3.0).dispatch.model_id == "a"


def test_committed_work_takes_ordinary_requests_of_its_model_along():
    made = scheduler()
    a, b = push(made, *burst(2))
    c, d = push(made, *burst(2, committed=True))
    assert served(made.next_decision(0.0)) == [c, d, a, b]


def test_ordinary_requests_with_another_key_do_not_ride_with_committed_work():
    made = scheduler()
    (a,) = push(made, request(key=OTHER))
    (b,) = push(made, request(committed=True))
    assert [served(made.next_decision(0.0)) for _ in range(2)] == [[b], [a]]


def test_committed_work_is_charged_to_the_model_that_ran():
    made = scheduler("a", "b")
    push(made, request("a", committed=True))
    made.record(made.next_decision(0.0).dispatch, 1.0, 1.0)
    push(made, request("a", enqueued_at=0.5), request("b", enqueued_at=0.6), now=1.0)
    assert made.next_decision(1.0).dispatch.model_id == "b"


# expiry


def test_what_is_due_is_dropped_wherever_it_stands_and_never_runs():
    made = scheduler()
    a, b, c = push(made, request(), request(deadline=2.0), request())
    decision = made.next_decision(2.0)
    assert decision.expired == (b,)
    assert served(decision) == [a, c]
    assert made.stats(2.0).models["m"].drops["expired_queue"] == 1


def test_a_request_still_runs_just_before_its_deadline():
    made = scheduler()
    push(made, request(deadline=2.0))
    assert made.next_decision(1.999).dispatch


def test_a_reserve_is_kept_back_from_the_deadline():
    made = scheduler(policies={"m": ModelPolicy(reserve_ms=500)})
    (a,) = push(made, request(deadline=2.0))
    assert made.next_decision(1.5).expired == (a,)


def test_the_learned_reserve_takes_a_quarter_of_the_budget_at_most():
    made = scheduler()
    for _ in range(20):
        made.record_reply("m", 0.5)
    (short, long) = push(made, request(deadline=1.0), request(deadline=10.0))
    assert made.next_decision(0.74).expired == ()
    push(made, short, long)
    assert made.next_decision(0.75).expired == (short,)
    made.record_reply("unloaded", 0.5)


def test_the_expired_are_told_even_when_nothing_can_run():
    made = scheduler("a", "b")
    made.set_weights("a", "loading")
    made.set_weights("b", "loading")
    (late,) = push(made, request("a", deadline=1.0))
    push(made, request("b", deadline=3.0))
    assert made.next_decision(0.5).wake_at == 1.0
    decision = made.next_decision(1.0)
    assert decision.expired == (late,)
    assert decision.wake_at == 3.0


def test_expired_committed_work_never_runs():
    made = scheduler(discipline="edf")
    (late,) = push(made, request(committed=True, deadline=1.0))
    assert made.next_decision(1.0).expired == (late,)


# withdrawal


def test_a_withdrawn_request_never_runs():
    made = scheduler()
    a, b, c = push(made, *burst(3))
    assert made.withdraw([b], 0.0) == (b,)
    assert served(made.next_decision(0.0)) == [a, c]
    assert made.stats(0.0).models["m"].drops["withdrawn"] == 1


def test_only_what_is_still_queued_can_be_withdrawn():
    made = scheduler()
    a, b = push(made, request(), request(key=OTHER))
    made.next_decision(0.0)
    assert made.withdraw([a, b, b], 0.0) == (b,)
    assert made.withdraw([b], 0.0) == ()
    assert made.next_decision(0.0).dispatch is None


def test_withdrawal_makes_room():
    made = scheduler(max_queue_depth=1)
    (a,) = push(made, request())
    made.withdraw([a], 0.0)
    push(made, request())


def test_many_withdrawals_leave_nothing_behind():
    made = scheduler(max_queue_depth=5000)
    requests = push(made, *burst(4000, deadline=1e9))
    queue = made._queues["m"]
    made.withdraw(requests[1:], 0.0)
    assert len(queue._ordinary) < 200
    assert len(queue._due) < 200
    assert served(made.next_decision(0.0)) == [requests[0]]


def test_served_requests_leave_their_deadlines_behind_only_for_a_while():
    made = scheduler()
    push(made, *burst(2, deadline=1e9))
    for _ in range(1000):
        push(made, request(deadline=1e9))
        made.next_decision(0.0)
    assert len(made._queues["m"]._due) < 200


# refusal


def test_a_full_queue_refuses_and_other_models_are_unaffected():
    made = scheduler("a", "b", max_queue_depth=2)
    push(made, *burst(2, "a"))
    with pytest.raises(QueueFull, match="'a' is full"):
        made.enqueue(burst(1, "a"), 0.0)
    with pytest.raises(QueueFull):
        made.admit("a", inf, 0.0)
    made.admit("b", inf, 0.0)
    push(made, request("b"))
    assert made.stats(0.0).models["a"].drops["queue_full"] == 2


def test_pieces_are_taken_all_or_not_at_all():
    made = scheduler(max_queue_depth=3)
    push(made, *burst(2))
    with pytest.raises(QueueFull):
        made.enqueue(burst(2), 0.0)
    assert made.stats(0.0).queue_depth == 2
    push(made, *burst(1))


def test_more_pieces_than_any_queue_takes_are_too_many_rows():
    made = scheduler(max_queue_depth=3)
    with pytest.raises(InvalidRequest) as refused:
        made.enqueue(burst(4), 0.0)
    assert refused.value.code == "too_many_rows"


def test_committed_work_is_exempt_from_the_queue_depth():
    made = scheduler(max_queue_depth=1)
    push(made, request())
    made.enqueue(burst(2, committed=True), 0.0)
    with pytest.raises(QueueFull):
        push(made, request())
    assert made.stats(0.0).queue_depth == 3


# models


def test_an_unloaded_model_gives_its_requests_back_and_takes_no_more():
    made = scheduler()
    requests = push(made, request(committed=True), *burst(2))
    assert made.remove_model("m") == requests
    assert made.next_decision(0.0).dispatch is None
    assert made.withdraw(requests, 0.0) == ()
    with pytest.raises(ModelNotFound, match="was unloaded"):
        push(made, request())


def test_a_model_may_be_unloaded_while_it_runs():
    made = scheduler()
    push(made, request())
    dispatch = made.next_decision(0.0).dispatch
    made.remove_model("m")
    made.record(dispatch, 1.0, 1.0)
    assert made.stats(1.0).models == {}


def test_an_id_in_use_is_refused():
    with pytest.raises(ValueError, match="in use"):
        scheduler().add_model("m", spec(), ModelPolicy())


@pytest.mark.parametrize(
    "call",
    [
        lambda made: made.set_policy("x", ModelPolicy()),
        lambda made: made.remove_model("x"),
        lambda made: made.rename_model("x", "y"),
        lambda made: made.carry_over("x", "m"),
        lambda made: made.admit("x", inf, 0.0),
        lambda made: made.set_weights("x", "cold"),
        lambda made: made.seed_cost("x", "default", 1, 1.0, 0.0),
        lambda made: made.record_load("x", 1.0, 0.0),
    ],
)
def test_unknown_models_are_not_found(call):
    with pytest.raises(ModelNotFound):
        call(scheduler())


def test_names_break_ties_and_may_change():
    made = scheduler("a", "b", discipline="fifo")
    push(made, *burst(8, "a"), *burst(8, "b"))
    assert made.next_decision(0.0).dispatch.model_id == "a"
    made.rename_model("a", "c")
    assert made.next_decision(0.0).dispatch.model_id == "b"
    assert made.stats(0.0).models["a"].name == "c"


def test_draining_gives_back_everything():
    made = scheduler("a", "b")
    requests = push(made, *burst(2, "a"), *burst(1, "b"))
    assert set(made.drain()) == set(requests)
    assert made.next_decision(0.0).dispatch is None


# sizing


def test_sizes_are_chosen_by_learned_cost_unless_the_policy_says_fill():
    made = scheduler("a", "b", policies={"b": ModelPolicy(sizing="fill")})
    for model in ("a", "b"):
        seed(made, model, {1: 1.0, 2: 5.0, 4: 20.0})
        push(made, *burst(4, model))
    sizes = {}
    for _ in range(2):
        dispatch = made.next_decision(0.0).dispatch
        sizes[dispatch.model_id] = dispatch.size
        made.record(dispatch, 1000.0, 0.0)
    assert sizes == {"a": 1, "b": 4}


def test_a_new_cost_changes_the_plan_of_what_is_queued():
    made = scheduler()
    seed(made, "m", {1: 1.0, 2: 5.0, 4: 20.0})
    push(made, *burst(8))
    assert made.next_decision(0.0).dispatch.size == 1
    for _ in range(60):
        seed(made, "m", {4: 0.1})
    assert made.next_decision(0.0).dispatch.size == 4


@pytest.mark.parametrize("discipline", ["fair", "fifo", "edf"])
def test_no_size_is_used_that_takes_longer_than_the_front_was_given(discipline):
    made = scheduler(discipline=discipline)
    seed(made, "m", {1: 0.1, 2: 0.11, 4: 0.12})
    push(made, *burst(4, deadline=0.12))
    assert made.next_decision(0.0).dispatch.size == 2
    made.drain()
    push(made, *burst(4, deadline=0.121))
    assert made.next_decision(0.0).dispatch.size == 4


def test_a_front_that_every_size_answers_late_goes_alone():
    made = scheduler(shed="edf")
    seed(made, "m", {1: 1.0, 2: 2.0, 4: 3.0})
    push(made, *burst(2, rows=2, deadline=0.5))
    dispatch = made.next_decision(0.0).dispatch
    assert (dispatch.size, dispatch.rows) == (2, 2)


def explored(costs, turns):
    """Turn → size of those dispatches that did not use the cheapest size, which is 1."""
    made = scheduler()
    seed(made, "m", costs)
    sizes = []
    for turn in range(turns):
        push(made, *burst(4))
        dispatch = made.next_decision(float(turn)).dispatch
        sizes.append(dispatch.size)
        made.record(dispatch, costs[dispatch.size], float(turn))
        made.withdraw(made._queues["m"].leading(4), float(turn))
    return {turn: size for turn, size in enumerate(sizes) if size != 1}


def test_every_64th_dispatch_uses_the_size_measured_longest_ago():
    assert explored({1: 1.0, 2: 2.2, 4: 5.0}, 192) == {63: 2, 127: 4, 191: 2}


def test_a_dear_size_is_tried_once_a_tenth_of_the_time_pays_for_it():
    costs = {1: 1.0, 2: 2.2, 4: 50.0}
    found = explored(costs, 2000)
    dear = [turn for turn, size in found.items() if size == 4]
    assert found[63] == found[127] == 2
    assert len(dear) == 2
    for turn in dear:
        tried = sum([costs[size] for before, size in found.items() if before <= turn])
        assert tried <= 0.1 * (turn + 1 - sum(before < turn for before in found) + tried)


def test_exploring_never_pads_and_always_serves_the_front():
    made = scheduler()
    seed(made, "m", {1: 1.0, 2: 1.0, 4: 1.0})
    for turn in range(64):
        push(made, request(rows=3))
        dispatch = made.next_decision(float(turn)).dispatch
        assert (dispatch.size, dispatch.rows) == (4, 3)
        made.record(dispatch, 1.0, float(turn))


# weights


def test_a_model_whose_weights_are_on_their_way_lets_others_run():
    made = scheduler("a", "b", discipline="fifo")
    made.set_weights("a", "loading")
    push(made, request("a"), request("b", enqueued_at=1.0), now=1.0)
    push(made, request("a", committed=True), now=1.0)
    assert made.next_decision(1.0).dispatch.model_id == "b"
    assert made.next_decision(1.0).wake_at == inf
    made.set_weights("a", "resident")
    assert made.next_decision(1.0).dispatch.model_id == "a"


def test_cold_models_with_work_are_wanted_in_order_of_what_a_load_gains():
    made = scheduler("a", "b", "c")
    for model in "abc":
        made.set_weights(model, "cold")
        made.record_load(model, 0.1, 0.0)
    push(made, request("a", enqueued_at=2.0), request("b", enqueued_at=1.0), now=2.0)
    assert made.wanted(5.0) == ("b", "a")
    push(made, request("a", enqueued_at=2.0), now=2.0)
    assert made.wanted(5.0) == ("a", "b")
    for _ in range(20):
        made.record_load("a", 0.3, 2.0)
    assert made.wanted(5.0) == ("b", "a")
    push(made, request("a", committed=True), now=2.0)
    assert made.wanted(5.0) == ("a", "b")
    made.set_weights("a", "loading")
    assert made.wanted(5.0) == ("b",)


def test_a_model_is_unserved_since_its_first_request_even_if_that_was_dropped_until_one_is_served():
    made = scheduler("a", "b", discipline="fifo")
    for model in "ab":
        made.set_weights(model, "cold")
    push(made, request("a", enqueued_at=0.0, deadline=1.0), now=0.0)
    assert len(made.next_decision(1.0).expired) == 1
    push(made, request("b", enqueued_at=2.0), request("a", enqueued_at=3.0), now=3.0)
    assert made.wanted(4.0) == ("a", "b")
    push(made, request("a", enqueued_at=3.0, rows=4), now=3.0)
    assert [made.next_decision(4.0).dispatch.model_id for _ in range(2)] == ["b", "a"]
    push(made, request("b", enqueued_at=4.5, rows=4), now=4.5)
    assert made.wanted(5.0) == ("a", "b")  # served at 4.0, which left work
    assert made.next_decision(5.0).dispatch.model_id == "a"
    push(made, request("a", enqueued_at=6.0, rows=4), now=6.0)
    assert made.wanted(7.0) == ("b", "a")  # which left none


@pytest.mark.parametrize("background", [True, False])
def test_work_whose_weights_come_in_the_background_is_ahead_of_nobody(background):
    made = scheduler("a", "b", "c", discipline="edf", admission="predict", background_loads=background)
    for model in "abc":
        seed(made, model, {1: 0.1})
    for model in "ab":
        made.set_weights(model, "cold")
        made.record_load(model, 5.0, 0.0)
        push(made, request(model, deadline=9.0))
    if background:
        push(made, request("c", deadline=9.5))
    else:
        with pytest.raises(DeadlineInfeasible):
            push(made, request("c", deadline=9.5))


def test_where_weights_come_in_the_background_a_cold_model_does_not_contend():
    made = scheduler("a", "b", discipline="fifo", background_loads=True)
    made.set_weights("a", "cold")
    push(made, request("a"), request("b", enqueued_at=1.0), request("b", enqueued_at=1.0, rows=4), now=1.0)
    assert (made.wanted(5.0), made.busy()) == (("a",), {"a", "b"})
    assert [made.next_decision(1.0).dispatch.model_id for _ in range(2)] == ["b", "b"]
    assert made.next_decision(1.0).dispatch is None
    made.set_weights("a", "resident")
    assert made.next_decision(1.0).dispatch.model_id == "a"


def test_one_model_may_be_emptied():
    made = scheduler("a", "b")
    first, other = push(made, request("a"), request("b"))
    assert made.drain("a") == (first,)
    assert made.drain("unknown") == ()
    assert made.busy() == {"b"}
    push(made, again := request("a"))
    assert made.stats(0.0).models["a"].queue_depth == 1
    assert set(made.drain()) == {again, other}
    assert made.busy() == set()


def test_a_weight_load_counts_into_the_cost_of_a_cold_model():
    made = scheduler("a", "b", "busy")
    for model in ("a", "b", "busy"):
        seed(made, model, {1: 0.01})
    push(made, *burst(9, "busy"))
    made.record(made.next_decision(0.0).dispatch, 1.0, 0.0)
    push(made, request("a"), request("b", enqueued_at=1.0), now=1.0)
    made.set_weights("a", "cold")
    made.record_load("a", 1.0, 0.0)
    assert [made.next_decision(1.0).dispatch.model_id for _ in range(2)] == ["b", "a"]


def test_what_is_planned_follows_the_weights():
    made = scheduler()
    seed(made, "m", {1: 0.1, 2: 0.11, 4: 0.12})
    made.record_load("m", 1.0, 0.0)
    made.set_weights("m", "loading")
    push(made, *burst(4, deadline=1.115))
    assert made.next_decision(0.0).dispatch is None
    made.set_weights("m", "cold")
    assert made.next_decision(0.0).dispatch.size == 2
    made.set_weights("m", "resident")
    push(made, *burst(2, deadline=1.115))
    assert made.next_decision(0.0).dispatch.size == 4


@pytest.mark.parametrize("sizing", ["fill", "cost"])
@pytest.mark.parametrize("costs", [{}, {1: 0.004, 8: 0.008, 32: 0.02}])
def test_a_long_queue_is_served_in_the_largest_size_and_not_in_the_smallest(sizing, costs):
    made = scheduler(spec("m", sizes=(1, 8, 32)), sizing=sizing)
    seed(made, "m", costs)
    push(made, *burst(40))
    assert [made.next_decision(0.0).dispatch.size for _ in range(2)] == [32, 8]


def test_the_cap_counts_rows_and_not_requests():
    made = scheduler(spec("m", sizes=(32, 64)), policies={"m": ModelPolicy(max_batch_size=32)})
    push(made, *burst(20, rows=32))
    taken = [made.next_decision(0.0).dispatch for _ in range(20)]
    assert {(each.rows, each.size, len(each.requests)) for each in taken} == {(32, 32, 1)}
    push(made, *burst(6, rows=12))
    assert [len(served(made.next_decision(0.0))) for _ in range(3)] == [2, 2, 2]
