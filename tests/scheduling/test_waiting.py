"""Release on size or age: how long a queue waits for company, and when the sleeper is woken."""

from math import inf

import pytest

from app.domain.config import ModelPolicy
from app.domain.model import MergeKey
from tests.builders import request, spec
from tests.scheduling.simulation import burst, push, scheduler, seed, served

WAIT = {"m": ModelPolicy(max_wait_ms=100)}


def test_a_partial_batch_waits_until_its_oldest_request_is_old_enough():
    made = scheduler(policies=WAIT)
    push(made, request(enqueued_at=1.0), now=1.0)
    push(made, request(enqueued_at=1.05), now=1.05)
    decision = made.next_decision(1.05)
    assert decision.dispatch is None
    assert decision.wake_at == pytest.approx(1.1)
    assert len(served(made.next_decision(decision.wake_at))) == 2


def test_a_full_batch_does_not_wait():
    made = scheduler(policies=WAIT)
    push(made, *burst(4))
    assert len(served(made.next_decision(0.0))) == 4


def test_a_batch_that_fills_while_it_waits_goes_at_once():
    made = scheduler(policies=WAIT)
    push(made, *burst(3))
    assert not served(made.next_decision(0.0))
    push(made, request(enqueued_at=0.01), now=0.01)
    assert len(served(made.next_decision(0.01))) == 4


def test_full_means_the_cap_and_the_cheapest_size_per_row():
    made = scheduler(policies={"m": ModelPolicy(max_wait_ms=100, max_batch_size=2)})
    push(made, *burst(2))
    assert served(made.next_decision(0.0))
    made = scheduler(policies=WAIT)
    seed(made, "m", {1: 5.0, 2: 1.0, 4: 20.0})
    push(made, *burst(2))
    assert served(made.next_decision(0.0))


def test_a_new_cost_changes_what_full_means():
    made = scheduler(policies=WAIT)
    seed(made, "m", {1: 5.0, 2: 1.0})
    push(made, *burst(4))
    dispatch = made.next_decision(0.0).dispatch
    push(made, *burst(2))
    assert not served(made.next_decision(0.0))
    made.record(dispatch, 20.0, 0.0)
    assert len(served(made.next_decision(0.0))) == 2


def test_without_a_wait_nothing_waits():
    made = scheduler()
    push(made, request())
    assert served(made.next_decision(0.0))


def test_a_run_that_nothing_can_join_does_not_wait():
    made = scheduler(policies=WAIT)
    push(made, request(), request(key=MergeKey("default", (7,))))
    assert served(made.next_decision(0.0))
    assert not served(made.next_decision(0.0))
    alone = scheduler(spec("m", batching=False), policies=WAIT)
    push(alone, request())
    assert served(alone.next_decision(0.0))


def test_committed_work_does_not_wait():
    made = scheduler(policies=WAIT)
    push(made, request(committed=True))
    assert served(made.next_decision(0.0))


def test_a_wait_ends_in_time_for_the_tightest_deadline():
    made = scheduler(policies=WAIT)
    seed(made, "m", {1: 0.02, 2: 0.03, 4: 0.04})
    push(made, request(), request(deadline=0.09))
    decision = made.next_decision(0.0)
    assert decision.wake_at == pytest.approx(0.05)
    assert len(served(made.next_decision(0.05))) == 2


def test_a_wait_allows_for_the_weight_load_of_a_cold_model():
    made = scheduler(policies=WAIT)
    seed(made, "m", {1: 0.02, 2: 0.03, 4: 0.04})
    made.record_load("m", 0.02, 0.0)
    made.set_weights("m", "cold")
    push(made, request(deadline=0.09))
    assert made.next_decision(0.0).wake_at == pytest.approx(0.03)


def test_a_deadline_too_tight_for_any_wait_is_released_at_once():
    made = scheduler(policies=WAIT)
    seed(made, "m", {1: 0.02, 2: 0.03, 4: 0.04})
    push(made, request(deadline=0.03))
    assert served(made.next_decision(0.0))


def test_the_sleeper_wakes_for_the_first_of_several_queues():
    made = scheduler("a", "b", "c", policies={"a": ModelPolicy(max_wait_ms=300), "b": ModelPolicy(max_wait_ms=200)})
    made.set_weights("c", "loading")
    push(made, request("a"), request("b"), request("c", deadline=0.25))
    assert made.next_decision(0.0).wake_at == pytest.approx(0.2)
    assert made.next_decision(0.2).dispatch.model_id == "b"
    assert made.next_decision(0.2).wake_at == pytest.approx(0.25)
    decision = made.next_decision(0.25)
    assert len(decision.expired) == 1
    assert decision.wake_at == pytest.approx(0.3)


def test_withdrawing_the_last_waiting_request_ends_the_wait():
    made = scheduler(policies=WAIT)
    requests = push(made, request())
    made.withdraw(requests, 0.0)
    assert made.next_decision(0.0).wake_at == inf


def test_under_edf_a_waiting_model_that_the_choice_would_doom_goes_first():
    made = scheduler("a", "slow", discipline="edf", policies={"a": ModelPolicy(max_wait_ms=100)})
    seed(made, "a", {1: 0.01, 2: 0.01, 4: 0.01})
    seed(made, "slow", {1: 0.5})
    push(made, request("a", deadline=0.4), request("slow", deadline=9.0))
    assert made.next_decision(0.0).dispatch.model_id == "a"


def test_under_edf_a_waiting_model_goes_on_waiting_when_the_choice_leaves_it_time():
    made = scheduler("a", "quick", discipline="edf", policies={"a": ModelPolicy(max_wait_ms=100)})
    seed(made, "a", {1: 0.01, 2: 0.01, 4: 0.01})
    seed(made, "quick", {1: 0.05})
    push(made, request("a", deadline=0.4), request("quick", deadline=9.0))
    assert made.next_decision(0.0).dispatch.model_id == "quick"
    assert made.next_decision(0.05).dispatch is None


def test_under_fair_a_waiting_model_is_left_waiting_where_nothing_is_shed():
    made = scheduler("a", "slow", policies={"a": ModelPolicy(max_wait_ms=100)}, shed="edf")
    seed(made, "slow", {1: 0.5})
    push(made, request("a", deadline=0.4), request("slow", deadline=9.0))
    assert made.next_decision(0.0).dispatch.model_id == "slow"


def test_later_arrivals_neither_shorten_nor_prolong_the_wait_of_the_first():
    made = scheduler(policies=WAIT)
    seed(made, "m", {1: 0.01, 2: 0.01, 4: 0.01})
    for arrival in (0.0, 0.04, 0.08):
        push(made, request(enqueued_at=arrival), now=arrival)
        decision = made.next_decision(arrival)
        assert decision.dispatch is None
        assert decision.wake_at == pytest.approx(0.1)
    assert made.next_decision(0.0999).dispatch is None
    assert len(served(made.next_decision(0.1))) == 3


def test_a_batch_whose_wait_ends_while_the_device_is_busy_takes_those_along_that_come_meanwhile():
    made = scheduler(spec("m", sizes=(1, 2, 4, 8)), "other", policies=WAIT)
    push(made, request("other"))
    busy = made.next_decision(0.0).dispatch
    arrivals = [push(made, request(enqueued_at=at), now=at)[0] for at in (0.01, 0.05, 0.15, 0.3, 0.49)]
    made.record(busy, 0.5, 0.5)
    assert served(made.next_decision(0.5))[:4] == arrivals[:4]


def test_a_lone_request_of_many_rows_is_run_piece_after_piece_without_a_pause():
    made = scheduler(spec("m", sizes=(1, 2, 4, 8, 16, 32)), sizing="fill")
    made.enqueue([request(rows=rows) for rows in (32, 32, 32, 4)], 0.0)
    now = 0.0
    for rows in (32, 32, 32, 4):
        dispatch = made.next_decision(now).dispatch
        assert (dispatch.size, dispatch.rows) == (rows, rows)
        now += 0.01
        made.record(dispatch, 0.01, now)
    assert made.next_decision(now).wake_at == inf
