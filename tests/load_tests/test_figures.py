"""From what clients saw to figures: what counts as answered, in time, missed, refused, failed."""

from collections import Counter
from math import inf, isnan

import numpy as np
import pytest

from load_tests.client import CLOSED, OK, UNANSWERED, Seen
from load_tests.counters import Counted
from load_tests.figures import figures
from load_tests.observe import Observed
from load_tests.workload import Call, Workload

WORKLOAD = Workload(calls=(Call(model="m", deadline_ms=100), Call(model="m", rows=4)), seconds=2.0)


def seen(*records, outcomes=(OK, UNANSWERED, CLOSED), timings=(), cpu=0.1, queued=0):
    """Records are (due, sent, answered, which, outcome)."""
    table = np.array(records, np.float64).reshape(-1, 5)
    return Seen(table, outcomes, tuple(timings), cpu, 2.0, queued)


def observed(**changes):
    counts = Counter({1: 1, 4: 3})
    values = {
        "seconds": 2.0,
        "cpu_seconds": 1.0,
        "busiest": 0.4,
        "is_loop": True,
        "device": 0.5,
        "machine": 0.6,
        "samples": ((0.0, 90, 80, 0.0), (1.0, 100, 70, 0.5)),
        "models": {"m": Counted(4, 8, 13, 0.1, counts, counts, counts)},
        **changes,
    }
    return Observed(**values)


def test_rates_count_what_was_answered_within_the_time_and_rows_what_they_brought():
    run = figures(WORKLOAD, 2.0, [seen((0, 0, 0.01, 0, 0), (1, 1, 1.05, 1, 0), (1.99, 1.99, 2.01, 1, 0))], observed())
    assert (run.due, run.ok) == (3, 3)
    assert (run.requests_per_s, run.rows_per_s, run.offered_per_s) == (1.0, 2.5, 1.5)
    assert run.latency_ms["max"] == pytest.approx(50)


def test_an_answer_after_its_deadline_is_a_miss_and_so_is_a_504_but_no_error():
    names = (OK, UNANSWERED, CLOSED, "deadline_exceeded", "queue_full")
    records = [(0, 0, 0.2, 0, 0), (0, 0, 0.2, 1, 0), (0, 0, 0.1, 0, 3), (0, 0, 0.01, 0, 4)]
    run = figures(WORKLOAD, 2.0, [seen(*records, outcomes=names)], observed())
    assert (run.late, run.refused_late, run.miss_rate, run.error_rate) == (1, 1, 0.5, 0.0)
    assert run.in_time_per_s == 0.5  # the one without a deadline
    assert run.rejected == {"deadline_exceeded": 1, "queue_full": 1}


def test_what_has_no_answer_or_another_code_is_an_error():
    names = (OK, UNANSWERED, CLOSED, "execution_failed")
    records = [(0, 0, 30, 0, 1), (0, 0, 1, 0, 2), (0, 0, 1, 0, 3), (0, 0, 0.01, 0, 0)]
    assert figures(WORKLOAD, 2.0, [seen(*records, outcomes=names)], observed()).error_rate == 0.75


def test_outcomes_of_several_processes_are_added_up_by_name():
    one = seen((0, 0, 0.1, 0, 3), outcomes=(OK, UNANSWERED, CLOSED, "a"))
    other = seen((0, 0, 0.1, 0, 3), (0, 0, 0.1, 0, 4), outcomes=(OK, UNANSWERED, CLOSED, "b", "a"))
    assert figures(WORKLOAD, 2.0, [one, other], observed()).rejected == {"a": 2, "b": 1}


def test_stages_are_read_from_server_timing():
    timings = [b"decode;dur=0.010, queue;dur=2.000", b"decode;dur=0.030, queue;dur=4.000"]
    run = figures(WORKLOAD, 2.0, [seen((0, 0, 0.1, 0, 0), timings=timings)], observed())
    assert run.stages_ms["queue"]["p50"] == 3.0
    assert run.stages_ms["decode"]["max"] == 0.03


def test_what_the_server_side_saw_is_told_per_request_and_execution():
    run = figures(WORKLOAD, 2.0, [seen((0, 0, 0.1, 0, 0), (0, 0, 0.1, 0, 0))], observed())
    assert (run.server_cpu_us, run.rows_per_execution) == (500_000, 3.25)
    assert (run.rss_max, run.pss_max) == (100, 80)
    assert run.batch_sizes == {"m": {1: 1, 4: 3}}


def test_what_others_used_is_what_is_left_of_the_busy_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    run = figures(WORKLOAD, 2.0, [seen((0, 0, 0.1, 0, 0), cpu=0.8)], observed())
    assert run.others_cores == pytest.approx((0.6 * 4 * 2 - 1.0 - 0.8) / 2)


def test_a_client_that_is_busy_or_late_says_that_it_may_be_what_was_measured():
    busy = figures(WORKLOAD, 2.0, [seen((0, 0, 0.1, 0, 0), cpu=1.9)], observed()).client
    late = figures(WORKLOAD, 2.0, [seen((0, 0.5, 0.6, 0, 0), queued=1)], observed()).client
    fine = figures(WORKLOAD, 2.0, [seen((0, 0.0001, 0.1, 0, 0))], observed()).client
    assert (busy["may_bound"], late["may_bound"], fine["may_bound"]) == (True, True, False)
    assert "95%" in busy["known_by"]
    assert "want of a connection" in late["known_by"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"device": 0.97}, "device"),
        ({"busiest": 0.9}, "event loop"),
        ({"busiest": 0.9, "is_loop": False}, "a thread"),
        ({"machine": 0.99}, "cores"),
        ({}, "nothing"),
    ],
)
def test_what_was_used_up_is_named(changes, named):
    assert named in figures(WORKLOAD, 2.0, [seen((0, 0, 0.1, 0, 0))], observed(**changes)).bounded_by


def test_nothing_answered_gives_figures_all_the_same():
    run = figures(WORKLOAD, 2.0, [seen((0, 0, 0.1, 0, 2))], observed(models={}, cpu_seconds=None, device=None))
    assert (run.ok, run.latency_ms, run.rows_per_execution, run.server_cpu_us) == (0, {}, None, None)


@pytest.mark.parametrize(
    ("gaps", "expected"),  # by bucket; their bounds are 25, 50, 100, 200 µs and so on
    [
        ([8], 12.5e-6),
        ([0, 4], 37.5e-6),
        ([2, 0, 0, 6], 100e-6 + 100e-6 * 2 / 6),
        ([1, 1], 25e-6),
        ([0] * 11 + [3], inf),
    ],
)
def test_the_median_gap_lies_within_its_bucket(gaps, expected):
    none: Counter[int] = Counter()
    counts = Counter(dict(enumerate(gaps)))
    assert Counted(sum(gaps), 0, 0, 0.0, none, none, counts).median_gap == pytest.approx(expected)


def test_without_executions_there_is_no_median_gap():
    none: Counter[int] = Counter()
    assert isnan(Counted(0, 0, 0, 0.0, none, none, none).median_gap)
