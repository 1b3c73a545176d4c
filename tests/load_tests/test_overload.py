"""Bursts at twice the capacity: when they are, what counts as an answer in time, and what counts as flat."""

import numpy as np
import pytest

from load_tests.client import CLOSED, OK, UNANSWERED, Seen
from load_tests.observe import Observed
from load_tests.overload import BURST, QUIET, bursts, flat, goodput, growth
from load_tests.soak import tenths


def seen(*records):
    return Seen(np.array(records, np.float64), (OK, UNANSWERED, CLOSED), (), 0.1, 1.0, 0)


def observed(samples):
    return Observed(1.0, 1.0, 0.5, True, 0.5, 0.5, tuple(samples), {})


def test_bursts_and_quiet_take_turns_and_fill_the_time():
    when = bursts(100.0, 12.0)
    assert when.spans == ((1.0, 5.0), (6.0, 10.0), (11.0, 12.0))
    assert when.seconds == 9.0
    assert sum(seconds for seconds, _, _ in when.pieces) == 12.0
    assert [rate for _, rate, _ in when.pieces] == [100 * QUIET, 100 * BURST] * 3
    assert list(when.hold(np.array([0.5, 1.0, 4.9, 5.0, 11.5]))) == [False, True, True, False, True]


def test_goodput_counts_what_was_answered_in_time_within_bursts():
    when = bursts(100.0, 5.0)
    records = [(2.0, 2.0, 2.05, 0, 0)] * 8  # in time
    records += [(2.0, 2.0, 2.2, 0, 0), (2.0, 2.0, 2.05, 0, 2), (0.5, 0.5, 0.55, 0, 0)]  # late, failed, in the quiet
    assert goodput([seen(*records)], when, 100.0) == 2.0


@pytest.mark.parametrize(
    ("before", "after", "is_flat"),
    [(100e6, 102e6, True), (200e6, 205e6, True), (200e6, 210e6, False), (9e6, 12e6, True)],
)
def test_memory_is_flat_when_it_grows_little(before, after, is_flat):
    assert flat(before, after) == is_flat


def test_growth_leaves_out_the_first_tenth():
    samples = [(float(second), 50 if second < 2 else 100 if second < 18 else 130, 0, 0.0) for second in range(20)]
    rounds = [observed(samples[:10]), observed(samples[10:])]
    assert growth(rounds, 0.1) == growth(rounds, 0.5) == (100, 130)
    assert growth(rounds, 0.0) == (50, 130)


def test_every_tenth_has_its_own_latency_and_cpu_per_request():
    records = [(at, at, at + (0.001 if at < 5 else 0.003), 0, 0) for at in np.linspace(0.0, 9.997, 1000)]
    samples = [(float(second), 0, 0, second * 0.01) for second in range(11)]
    parts = tenths([seen(*records)], observed(samples))
    assert [part.p50 for part in parts] == pytest.approx([1.0] * 5 + [3.0] * 5)
    assert [part.cpu_us for part in parts] == pytest.approx([100.0] * 10, rel=0.05)
