"""When a request goes, waits or is dropped: the exact edges."""

import pytest

from app.scheduling.deadlines import feasible, release, safe_wait, shed
from tests.builders import request


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (119, "wait"),
        (120, "release"),
        (121, "release"),
        (151, "release"),
        (152, "reject:deadline"),
        (160, "reject:deadline"),
    ],
)
def test_a_batch_is_released_on_age_and_rejected_at_its_expiry(now, state):
    assert release(1, 100, 190, now, max_size=4, max_wait=20, reserve=38) == state


def test_a_batch_is_released_on_size():
    assert release(3, 100, 190, 101, max_size=4, max_wait=20, reserve=38) == "wait"
    assert release(4, 100, 190, 101, max_size=4, max_wait=20, reserve=38) == "release"
    assert release(4, 100, 190, 152, max_size=4, max_wait=20, reserve=38) == "reject:deadline"


def test_without_a_wait_everything_is_released_at_once():
    assert release(1, 100, 190, 100, max_size=4, max_wait=0, reserve=0) == "release"


def test_an_empty_queue_is_empty_before_anything_is_validated():
    assert release(0, 0, 0, 0, max_size=0, max_wait=-1, reserve=-1) == "empty"


@pytest.mark.parametrize("wrong", [{"max_size": 0}, {"max_wait": -0.001}, {"reserve": -0.001}])
def test_senseless_limits_are_refused(wrong):
    limits = {"max_size": 1, "max_wait": 0, "reserve": 0, **wrong}
    with pytest.raises(ValueError, match="must be at least 1"):
        release(1, 100, 190, 100, **limits)


def test_a_sleeper_that_wakes_at_the_release_instant_finds_the_queue_released():
    arrival, wait = 0.1, 0.2
    assert release(1, arrival, 1e9, arrival + wait, max_size=4, max_wait=wait, reserve=0) == "release"


def test_a_wait_ends_early_enough_for_the_tightest_request():
    assert safe_wait(5.0, oldest_arrival=10.0, tightest_due=13.0, load=0.5, cost=1.0) == 1.5
    assert safe_wait(1.0, oldest_arrival=10.0, tightest_due=13.0, load=0.5, cost=1.0) == 1.0
    assert safe_wait(1.0, oldest_arrival=10.0, tightest_due=10.5, load=0.0, cost=1.0) == 0.0


def test_work_that_would_end_exactly_when_due_is_infeasible():
    assert feasible(10.0, 13.01, running=1.0, load=0.5, own=1.0, ahead=0.5)
    assert not feasible(10.0, 13.0, running=1.0, load=0.5, own=1.0, ahead=0.5)


def test_shedding_drops_what_would_be_late_and_keeps_committed_work():
    early, edge, late = request(), request(), request()
    early.due, edge.due, late.due = 1.0, 2.0, 3.0
    committed = request(committed=True)
    committed.due = 1.0
    assert shed([early, committed, edge, late], 2.0) == ([committed, late], [early, edge])
