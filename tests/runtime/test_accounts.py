"""Every request that was accepted ends in exactly one way."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import ServingError
from app.runtime.accounts import DROP_REASONS, LATENCY_BOUNDS, TIMES, Account
from app.scheduling.stats import DROP_REASONS as SCHEDULER_REASONS


def codes(error=ServingError):
    return [error.reason, *(code for child in error.__subclasses__() for code in codes(child))]


CODES = [None, *codes(), "empty_batch", "made_up"]

DROPPED = {"deadline_exceeded", "deadline_infeasible", "queue_full", "cancelled", "shutdown"}


@pytest.mark.parametrize("code", CODES)
def test_every_code_counts_as_one_outcome(code):
    account = Account(accepted=1)
    account.close(code, 0.01)
    outcome = {"ok": account.ok, "failed": account.failed, "dropped": account.dropped}
    expected = "ok" if code is None else "dropped" if code in DROPPED else "failed"
    assert outcome == {"ok": 0, "failed": 0, "dropped": 0, expected: 1}
    assert account.in_flight == 0


def test_the_reasons_of_drops_are_those_that_are_documented():
    assert set(DROP_REASONS.values()) == {
        "expired_queue", "infeasible_admission", "infeasible_dispatch", "queue_full", "cancelled", "shutdown",
    }  # fmt: skip
    assert set(SCHEDULER_REASONS) - {"withdrawn"} <= set(DROP_REASONS.values())


@given(st.lists(st.sampled_from(CODES)), st.integers(0, 5))
def test_accepted_requests_are_answered_failed_dropped_or_in_flight(ends, more):
    account = Account(accepted=len(ends) + more)
    for code in ends:
        account.close(code, 0.0)
    assert account.accepted == account.ok + account.failed + account.dropped + account.in_flight
    assert account.in_flight == more
    assert account.drops == Counter(DROP_REASONS[code] for code in ends if code in DROP_REASONS)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.0005, 0), (0.00051, 1), (0.001, 1), (10.0, len(LATENCY_BOUNDS) - 1), (11.0, len(LATENCY_BOUNDS))],
)
def test_a_latency_falls_into_the_first_bucket_whose_bound_it_does_not_exceed(seconds, bucket):
    account = Account(accepted=1)
    account.close(None, seconds)
    assert account.latency.buckets == [int(index == bucket) for index in range(len(LATENCY_BOUNDS) + 1)]
    assert account.latency.total == seconds


def test_histograms_hold_every_request_whenever_they_are_read():
    account = Account(accepted=5000)
    stages = (0.001, 0.0, 0.25, 0.0, 0.5, 0.0, 0.00001)
    for number in range(5000):
        if number % 5:
            account.close(None, 0.02, TIMES.pack(100.0, 1.0, 0.02, *stages))
        else:
            account.close("internal", 0.02)
        if number % 777 == 0:
            assert sum(account.latency.buckets) == number + 1
    assert sum(account.latency.buckets) == account.ok + account.failed == 5000
    assert account.latency.total == pytest.approx(100.0)
    assert [sum(each.buckets) for each in account.stages] == [4000, 0, 4000, 0, 4000, 0, 4000]
    assert account.stages[4].total == pytest.approx(2000.0)


def test_accounts_share_nothing():
    left, right = Account(), Account()
    left.close("cancelled", 1.0)
    assert (right.dropped, sum(right.latency.buckets)) == (0, 0)
