"""A failed dispatch is run again in halves until the culprit stands alone."""

from app.domain.config import ModelPolicy
from tests.builders import request
from tests.scheduling.simulation import burst, push, scheduler, seed, served


def run_all(made, culprits, seconds=0.0, now=0.0):
    """Run to the end: a dispatch with a culprit fails. (answered, failed, dispatches)"""
    answered, failed, dispatches = [], [], []
    while dispatch := made.next_decision(now).dispatch:
        dispatches.append(list(dispatch.requests))
        if culprits & set(dispatch.requests):
            failed += made.retry(dispatch, dispatch.requests, seconds, now)
        else:
            made.record(dispatch, seconds, now)
            answered += dispatch.requests
    return answered, failed, dispatches


def test_only_the_culprit_fails():
    made = scheduler()
    requests = push(made, *burst(4))
    answered, failed, dispatches = run_all(made, {requests[1]})
    a, b, c, d = requests
    assert dispatches == [[a, b, c, d], [a, b], [a], [b], [c, d]]
    assert failed == [b]
    assert answered == [a, c, d]


def test_several_culprits_each_fail_alone():
    made = scheduler()
    requests = push(made, *burst(4))
    answered, failed, _ = run_all(made, {requests[0], requests[3]})
    assert set(failed) == {requests[0], requests[3]}
    assert set(answered) == {requests[1], requests[2]}


def test_a_request_that_fails_alone_is_not_run_again():
    made = scheduler()
    requests = push(made, *burst(1))
    _, failed, dispatches = run_all(made, set(requests))
    assert failed == list(requests)
    assert len(dispatches) == 1


def test_parts_run_before_newcomers_and_are_not_merged_with_them():
    made = scheduler()
    requests = push(made, *burst(2))
    dispatch = made.next_decision(0.0).dispatch
    (newcomer,) = push(made, request())
    assert made.retry(dispatch, dispatch.requests, 0.0, 0.0) == ()
    assert [served(made.next_decision(0.0)) for _ in range(3)] == [[requests[0]], [requests[1]], [newcomer]]


def test_parts_expire_and_can_be_withdrawn_like_anything_queued():
    made = scheduler()
    a, b, c, d = push(made, request(), request(deadline=1.0), request(), request())
    dispatch = made.next_decision(0.0).dispatch
    made.retry(dispatch, [a, b, c, d], 0.0, 0.0)
    assert made.stats(0.0).queue_depth == 4
    assert made.withdraw([a], 0.0) == (a,)
    decision = made.next_decision(1.0)
    assert decision.expired == (b,)
    assert served(decision) == [c, d]


def test_a_part_keeps_together_however_short_its_time():
    made = scheduler()
    seed(made, "m", {1: 1.0, 2: 2.0, 4: 4.0})
    made.set_policy("m", ModelPolicy(sizing="fill"))
    requests = push(made, *burst(4, deadline=4.5))
    dispatch = made.next_decision(0.0).dispatch
    assert made.retry(dispatch, requests, 0.0, 0.0) == ()
    for _ in range(20):
        seed(made, "m", {2: 9.0})
    again = made.next_decision(0.0).dispatch
    assert (again.size, again.requests) == (2, requests[:2])


def test_those_already_answered_are_left_out():
    made = scheduler()
    *_, last = push(made, *burst(4))
    dispatch = made.next_decision(0.0).dispatch
    made.retry(dispatch, [last], 0.0, 0.0)
    again = made.next_decision(0.0).dispatch
    assert again.requests == (last,)
    assert made.retry(again, again.requests, 0.0, 0.0) == (last,)


def test_parts_that_use_up_four_times_the_learned_cost_fail_together():
    made = scheduler()
    seed(made, "m", {1: 1.0, 2: 1.0, 4: 1.0})
    requests = push(made, *burst(4))
    first = made.next_decision(0.0).dispatch
    assert made.retry(first, first.requests, 100.0, 0.0) == ()
    half = made.next_decision(0.0).dispatch
    assert made.retry(half, half.requests, 3.95, 0.0) == ()
    single = made.next_decision(0.0).dispatch
    made.record(single, 0.1, 0.0)
    other_single = made.next_decision(0.0).dispatch
    made.record(other_single, 0.0, 0.0)
    rest = made.next_decision(0.0).dispatch
    assert rest.requests == requests[2:]
    assert made.retry(rest, rest.requests, 0.0, 0.0) == requests[2:]


def test_a_failure_is_charged_and_teaches_no_cost():
    made = scheduler()
    push(made, *burst(2))
    dispatch = made.next_decision(0.0).dispatch
    made.retry(dispatch, dispatch.requests, 0.5, 0.0)
    stats = made.stats(0.0).models["m"]
    assert stats.recent_seconds == 0.5
    assert stats.costs == {}
    assert stats.dispatches == 0


def test_the_parts_of_an_unloaded_model_fail():
    made = scheduler()
    push(made, *burst(2))
    dispatch = made.next_decision(0.0).dispatch
    made.remove_model("m")
    assert made.retry(dispatch, dispatch.requests, 0.5, 0.0) == dispatch.requests


def test_parts_are_orphaned_with_their_model():
    made = scheduler()
    requests = push(made, *burst(2))
    dispatch = made.next_decision(0.0).dispatch
    made.retry(dispatch, dispatch.requests, 0.0, 0.0)
    assert made.remove_model("m") == requests


def test_committed_parts_stay_committed():
    made = scheduler("a", "b", discipline="fifo")
    push(made, *burst(2, "b", committed=True, now=5.0))
    dispatch = made.next_decision(5.0).dispatch
    push(made, request("a"), now=5.0)
    made.retry(dispatch, dispatch.requests, 0.0, 5.0)
    assert [made.next_decision(5.0).dispatch.model_id for _ in range(3)] == ["b", "b", "a"]
