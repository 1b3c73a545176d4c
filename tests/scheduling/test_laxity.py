"""A dispatch serves nobody that it could only answer late."""

import pytest

from app.domain.config import ModelPolicy
from app.domain.model import MergeKey
from tests.builders import request
from tests.scheduling.simulation import burst, push, scheduler, seed, served


def edf(*models, **config):
    return scheduler(*models, discipline="edf", **config)


def test_a_request_that_would_end_exactly_when_due_is_dropped():
    made = edf()
    seed(made, "m", {1: 1.0})
    (late,) = push(made, request(deadline=3.0))
    decision = made.next_decision(2.0)
    assert decision.dispatch is None
    assert decision.expired == (late,)
    assert made.stats(2.0).models["m"].drops["infeasible_dispatch"] == 1


def test_a_request_that_would_end_just_in_time_runs():
    made = edf()
    seed(made, "m", {1: 1.0})
    push(made, request(deadline=3.0))
    assert served(made.next_decision(1.999))


def test_where_somebody_is_lost_anyway_it_is_who_could_end_only_just_in_time():
    made = edf()
    made.set_policy("m", ModelPolicy(max_batch_size=1))
    seed(made, "m", {1: 1.0})
    tight, other = push(made, request(deadline=1.01), request(deadline=1.9))
    decision = made.next_decision(0.0)
    assert decision.expired == (tight,)
    assert served(decision) == [other]


@pytest.mark.parametrize(
    ("cap", "deadlines"), [(1, [2.1]), (2, [1.9, 1.9])], ids=["all in time", "too few others to fill it"]
)
def test_who_could_end_just_in_time_is_served_where_nobody_gains_by_its_loss(cap, deadlines):
    made = edf()
    made.set_policy("m", ModelPolicy(max_batch_size=cap))
    seed(made, "m", {1: 1.0, 2: 1.0})
    tight, *_ = push(made, request(deadline=1.01), *[request(deadline=each) for each in deadlines])
    assert tight in served(made.next_decision(0.0))


def test_the_batch_is_planned_again_after_a_drop():
    made = edf()
    seed(made, "m", {1: 1.0, 2: 1.2, 4: 1.4})
    a, late, c = push(made, request(deadline=9.0), request(deadline=1.35), request(deadline=9.0))
    decision = made.next_decision(0.0)
    assert decision.expired == (late,)
    assert served(decision) == [a, c]
    assert decision.dispatch.size == 2


def test_a_drop_may_leave_another_model_the_most_urgent():
    made = edf("a", "b")
    seed(made, "a", {1: 1.0, 2: 1.0})
    seed(made, "b", {1: 0.1})
    (late,) = push(made, request("a", deadline=0.5))
    push(made, request("b", deadline=2.0), request("a", deadline=3.0))
    decision = made.next_decision(0.0)
    assert decision.expired == (late,)
    assert decision.dispatch.model_id == "b"


def test_an_unseeded_cost_drops_nothing():
    made = edf()
    push(made, request(deadline=0.001))
    assert served(made.next_decision(0.0))


def test_the_weight_load_of_a_cold_model_counts():
    made = edf()
    made.record_load("m", 1.0, 0.0)
    made.set_weights("m", "cold")
    (late,) = push(made, request(deadline=1.0))
    assert made.next_decision(0.0).expired == (late,)
    push(made, request(deadline=1.1))
    assert served(made.next_decision(0.0))


def test_committed_work_skips_laxity():
    made = edf()
    seed(made, "m", {1: 1.0})
    (urgent,) = push(made, request(deadline=0.5, committed=True))
    assert served(made.next_decision(0.0)) == [urgent]


def test_the_ordinary_company_of_committed_work_does_not_skip_laxity():
    made = edf()
    seed(made, "m", {1: 1.0, 2: 1.0, 4: 1.0})
    (late,) = push(made, request(deadline=0.5))
    (committed,) = push(made, request(committed=True))
    decision = made.next_decision(0.0)
    assert decision.expired == (late,)
    assert served(decision) == [committed]


def test_when_nothing_feasible_remains_nothing_runs_and_nothing_is_recorded():
    made = edf()
    seed(made, "m", {1: 1.0, 2: 1.0, 4: 1.0})
    requests = push(made, *burst(9, deadline=0.5))
    decision = made.next_decision(0.0)
    assert set(decision.expired) == set(requests)
    assert decision.dispatch is None
    assert made.stats(0.0).models["m"].dispatches == 0


@pytest.mark.parametrize("discipline", ["fair", "fifo", "edf"])
def test_what_could_only_be_late_is_not_run_whoever_chooses(discipline):
    made = scheduler(discipline=discipline)
    seed(made, "m", {1: 1.0})
    (late,) = push(made, request(deadline=0.5))
    assert made.next_decision(0.0).expired == (late,)


@pytest.mark.parametrize("discipline", ["fair", "fifo"])
def test_other_disciplines_may_be_told_to_run_what_is_not_yet_expired(discipline):
    made = scheduler(discipline=discipline, shed="edf")
    seed(made, "m", {1: 1.0})
    push(made, request(deadline=0.5))
    assert served(made.next_decision(0.0))


def test_a_cost_that_nobody_measured_for_long_is_tried_again_now_and_then():
    made = edf()
    seed(made, "m", {1: 1.0})

    def run_at(now):
        push(made, request(enqueued_at=now, deadline=now + 0.5), now=now)
        return bool(served(made.next_decision(now)))

    assert [run_at(now) for now in (19.9, 20.1, 20.2, 40.0, 40.2)] == [False, True, False, False, True]


def test_a_quick_model_is_tried_again_after_a_second():
    made = edf()
    seed(made, "m", {1: 0.01})
    push(made, request(enqueued_at=0.9, deadline=0.905), now=0.9)
    assert not served(made.next_decision(0.9))
    push(made, request(enqueued_at=1.1, deadline=1.105), now=1.1)
    assert served(made.next_decision(1.1))


def test_the_most_urgent_request_decides_wherever_it_stands_in_its_queue():
    made = edf("a", "b")
    push(made, request("a", deadline=5.0), request("b", deadline=9.0))
    push(made, request("b", deadline=2.0, key=MergeKey("default", (7,))))
    assert [made.next_decision(0.0).dispatch.model_id for _ in range(3)] == ["b", "b", "a"]
