"""Early refusal of deadlines that cannot be met."""

import pytest

from app.domain.config import ModelPolicy
from app.domain.errors import DeadlineInfeasible
from app.domain.model import Variant
from tests.builders import request, spec
from tests.scheduling.simulation import burst, push, scheduler, seed

COSTS = {1: 1.0, 2: 1.5, 4: 2.0}


def admitted(made, deadline, now=0.0, model="m", **facts):
    """Whether a request is taken at enqueue; it is withdrawn at once."""
    one = request(model, deadline=deadline, enqueued_at=now, **facts)
    try:
        made.enqueue([one], now)
    except DeadlineInfeasible:
        return False
    made.withdraw([one], now)
    return True


def test_the_floor_is_the_default_and_refuses_what_its_own_cost_makes_late():
    made = scheduler(admission=None)
    seed(made, "m", COSTS)
    assert admitted(made, 1.001)
    assert not admitted(made, 1.0)
    assert made.stats(0.0).models["m"].drops["infeasible_admission"] == 1


def test_a_refusal_says_what_is_needed_and_what_is_left():
    made = scheduler(admission="floor")
    seed(made, "m", COSTS)
    with pytest.raises(
        DeadlineInfeasible, match=r"'m' cannot answer in the 500\.0 ms that are left: it needs 1000\.0 ms"
    ):
        made.enqueue([request(deadline=0.5)], 0.0)


def test_the_floor_counts_the_rest_of_the_running_execution():
    made = scheduler("m", "n", admission="floor")
    seed(made, "m", COSTS)
    seed(made, "n", {1: 3.0})
    push(made, request("n"))
    dispatch = made.next_decision(0.0).dispatch
    assert not admitted(made, 3.0, now=1.0)
    assert admitted(made, 4.001, now=1.0)
    assert not admitted(made, 4.0, now=1.0)
    assert admitted(made, 6.001, now=5.0)
    made.record(dispatch, 0.5, 0.5)
    assert admitted(made, 3.0, now=1.0)


def test_the_floor_counts_the_weight_load_and_the_reserve():
    made = scheduler(admission="floor", policies={"m": ModelPolicy(reserve_ms=500)})
    seed(made, "m", COSTS)
    made.record_load("m", 2.0, 0.0)
    assert admitted(made, 1.501)
    made.set_weights("m", "cold")
    assert not admitted(made, 3.5)
    assert admitted(made, 3.501)


def test_the_floor_ignores_what_is_queued():
    made = scheduler(admission="floor")
    seed(made, "m", COSTS)
    push(made, *burst(100))
    assert admitted(made, 1.001)


def test_the_own_cost_is_that_of_the_cheapest_size_holding_the_rows():
    made = scheduler(admission="floor")
    seed(made, "m", COSTS)
    assert not admitted(made, 1.5, rows=2)
    assert admitted(made, 1.501, rows=2)
    assert not admitted(made, 2.0, rows=3)


def test_all_pieces_of_a_request_count():
    made = scheduler(admission="floor")
    seed(made, "m", COSTS)
    pieces = [request(rows=4, deadline=5.0), request(rows=4, deadline=5.0), request(rows=1, deadline=5.0)]
    with pytest.raises(DeadlineInfeasible):
        made.enqueue(pieces, 0.0)
    made.enqueue(pieces[:2], 0.0)


def test_a_model_without_compiled_sizes_is_judged_by_requests_of_its_size_class():
    made = scheduler(spec("m", sizes=()), admission="floor")
    push(made, request(rows=7))
    made.record(made.next_decision(0.0).dispatch, 2.0, 0.0)
    assert not admitted(made, 2.0, rows=5)
    assert admitted(made, 2.0, rows=4)


def test_before_decoding_the_cheapest_cost_is_assumed():
    model = spec("m", variants=(Variant("s", (1,), {}), Variant("l", (1,), {})))
    made = scheduler(model, admission="floor")
    made.admit("m", 0.001, 0.0)
    made.seed_cost("m", "l", 1, 3.0, 0.0)
    made.seed_cost("m", "s", 1, 1.0, 0.0)
    made.admit("m", 1.001, 0.0)
    with pytest.raises(DeadlineInfeasible):
        made.admit("m", 1.0, 0.0)


def test_while_nothing_is_known_only_the_expired_are_refused():
    made = scheduler(admission="floor")
    assert admitted(made, 0.001)
    assert not admitted(made, 0.0)


def test_committed_work_and_requests_without_a_deadline_are_always_admitted():
    made = scheduler(admission="floor")
    seed(made, "m", COSTS)
    push(made, request(deadline=0.5, committed=True), request())


def test_admission_may_be_off():
    made = scheduler(admission="off")
    seed(made, "m", COSTS)
    assert admitted(made, 0.001)


def test_under_edf_the_own_queue_and_models_with_sooner_deadlines_come_first():
    made = scheduler("m", "sooner", "later", discipline="edf", admission=None)
    for model in ("m", "sooner", "later"):
        seed(made, model, COSTS)
    push(made, *burst(4, "m"), *burst(8, "sooner", deadline=20.0), *burst(4, "later", deadline=90.0))
    assert not admitted(made, 2.0 + 1.0, model="m")
    assert admitted(made, 2.0 + 1.001, model="m")
    assert not admitted(made, 20.0 + 2.0 + 2.0 + 1.0, now=20.0, model="m")
    assert admitted(made, 20.0 + 2.0 + 2.0 + 1.001, now=20.0, model="m")


def test_under_fifo_everything_queued_comes_first():
    made = scheduler("m", "n", discipline="fifo", admission="predict")
    for model in ("m", "n"):
        seed(made, model, COSTS)
    push(made, *burst(4, "m"), *burst(8, "n"))
    assert not admitted(made, 2.0 + 4.0 + 1.0)
    assert admitted(made, 2.0 + 4.0 + 1.001)


def test_under_fair_the_own_queue_takes_as_long_as_the_share_lets_it():
    made = scheduler("m", "n", admission="predict", policies={"n": ModelPolicy(weight=3.0)})
    for model in ("m", "n"):
        seed(made, model, COSTS)
    push(made, *burst(4, "m"), *burst(100, "n"))
    assert not admitted(made, 2.0 / 0.25 + 1.0)
    assert admitted(made, 2.0 / 0.25 + 1.001)


def test_committed_work_of_others_always_comes_first():
    made = scheduler("m", "n", admission="predict")
    for model in ("m", "n"):
        seed(made, model, COSTS)
    push(made, *burst(2, "n", committed=True), *burst(6, "n"))
    assert not admitted(made, 1.0 + 1.0)
    assert admitted(made, 1.0 + 1.001)


def test_prediction_knows_nothing_while_costs_are_unseeded():
    made = scheduler(discipline="edf", admission="predict")
    push(made, *burst(100))
    assert admitted(made, 0.001)


def test_a_request_rides_with_a_partial_batch_and_costs_what_that_then_costs():
    made = scheduler(discipline="fifo", admission="predict")
    seed(made, "m", COSTS)
    push(made, *burst(2))
    assert not admitted(made, 2.0)
    assert admitted(made, 2.001)


def test_a_queue_that_does_not_merge_is_served_one_by_one():
    made = scheduler(spec("m", batching=False), discipline="fifo", admission="predict")
    push(made, request())
    made.record(made.next_decision(0.0).dispatch, 1.0, 0.0)
    push(made, *burst(5))
    assert not admitted(made, 6.0)
    assert admitted(made, 6.001)
