"""Arrivals: they repeat, they keep their rate, and they clump as much as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.arrivals import ARRIVALS, merged, phases, poisson, ramp, steady, surge

KINDS = sorted(ARRIVALS)


def generator(seed=1):
    return np.random.default_rng(seed)


def cv(times):
    gaps = np.diff(times)
    return gaps.std() / gaps.mean()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_instants_and_another_seed_others(kind):
    first, again, other = [ARRIVALS[kind](50.0, 4.0, generator(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("kind", KINDS)
def test_instants_ascend_within_the_time(kind):
    times = ARRIVALS[kind](200.0, 3.0, generator())
    assert np.all(np.diff(times) >= 0)
    assert 0 <= times[0] <= times[-1] < 3.0


@pytest.mark.parametrize(("kind", "tolerance"), [("steady", 0.001), ("poisson", 0.02), ("gamma4", 0.05), ("bursts", 0)])
def test_the_rate_is_kept(kind, tolerance):
    assert len(ARRIVALS[kind](1000.0, 200.0, generator())) == pytest.approx(200_000, rel=tolerance)


@pytest.mark.parametrize(("kind", "expected"), [("steady", 0.0), ("poisson", 1.0), ("gamma4", 4.0)])
def test_gaps_vary_as_much_as_the_name_says(kind, expected):
    assert cv(ARRIVALS[kind](1000.0, 200.0, generator())) == pytest.approx(expected, abs=0.1)


def test_interrupted_arrivals_are_at_most_so_many_and_mostly_fewer():
    counts = np.array([len(ARRIVALS["interrupted"](100.0, 10.0, generator(seed))) for seed in range(200)])
    assert counts.max() == 1000
    assert 800 < counts.mean() < 950


def test_interrupted_arrivals_are_equally_dense_in_every_burst():
    """However long the pauses are, which make `bursts` denser."""
    densest: dict[str, list[float]] = {kind: [] for kind in ("bursts", "interrupted")}
    for kind, found in densest.items():
        for seed in range(20):
            times = ARRIVALS[kind](2000.0, 5.0, generator(seed))
            found.append(np.histogram(times, bins=100, range=(0.0, 5.0))[0].max() / 0.05)
    assert max(densest["interrupted"]) < 1.25 * 2000.0 / 0.45
    assert max(densest["bursts"]) > 1.5 * 2000.0 / 0.45


@pytest.mark.parametrize("kind", ["bursts", "interrupted"])
def test_bursts_leave_pauses(kind):
    times = ARRIVALS[kind](100.0, 100.0, generator())
    counts = np.histogram(times, bins=1000, range=(0.0, 100.0))[0]
    assert (counts == 0).mean() > 0.3  # of tenths of a second, where Poisson arrivals of this rate leave none empty


@pytest.mark.parametrize("kind", ["poisson", "gamma4"])
def test_another_rate_stretches_the_same_pattern(kind):
    slow, fast = [ARRIVALS[kind](rate, 2.0, generator()) for rate in (100.0, 400.0)]
    assert fast[: len(slow)] * 4 == pytest.approx(slow)


def test_steady_arrivals_are_evenly_spaced():
    assert np.diff(steady(100.0, 1.0, generator())) == pytest.approx(0.01)


def test_no_rate_is_too_low():
    assert len(poisson(1e-9, 1.0, generator())) == 0


def test_merged_arrivals_ascend_and_keep_each_models_rate():
    times, owners = merged("poisson", [100.0, 300.0], 100.0, 1)
    assert np.all(np.diff(times) >= 0)
    assert np.bincount(owners) == pytest.approx([10_000, 30_000], rel=0.05)


def test_models_of_one_rate_do_not_arrive_together():
    times, owners = merged("poisson", [100.0, 100.0], 10.0, 1)
    assert not set(times[owners == 0]) & set(times[owners == 1])


def test_a_models_arrivals_do_not_depend_on_the_others():
    alone, _ = merged("bursts", [100.0], 10.0, 1)
    times, owners = merged("bursts", [100.0, 700.0], 10.0, 1)
    assert np.array_equal(alone, times[owners == 0])


pieces = st.lists(st.tuples(*[st.floats(0.0, 20.0, allow_subnormal=False)] * 3), min_size=1, max_size=5)


@given(pieces, st.integers(0, 5))
def test_arrivals_in_phases_ascend_and_stay_within_them(spans, seed):
    times = phases(spans, generator(seed))
    assert np.all(np.diff(times) >= 0)
    assert not len(times) or 0 <= times[0] <= times[-1] < sum(seconds for seconds, _, _ in spans)


@given(pieces, st.integers(0, 5))
def test_every_phase_has_as_many_arrivals_as_its_rates_say(spans, seed):
    times, end = phases(spans, generator(seed)), 0.0
    for seconds, first, last in spans:
        begin, end = end, end + seconds
        expected = seconds * (first + last) / 2
        seen = int(((times >= begin) & (times < end)).sum())
        assert abs(seen - expected) <= 6 * expected**0.5 + 6


def test_a_ramp_rises_evenly():
    times = ramp(1000.0, 100.0, generator())
    quarters = np.histogram(times, bins=4, range=(0.0, 100.0))[0]
    assert quarters == pytest.approx([8125, 19375, 30625, 41875], rel=0.05)  # 325, 775, 1225 and 1675 a second


def test_a_surge_comes_once_and_is_as_high_as_asked_for():
    times = surge(100.0, 100.0, generator(), factor=5.0, at=0.6)
    rates = np.histogram(times, bins=10, range=(0.0, 100.0))[0] / 10
    assert rates == pytest.approx([100] * 6 + [500] * 2 + [100] * 2, rel=0.15)


def test_a_negative_rate_is_refused():
    with pytest.raises(ValueError, match="negative"):
        phases([(1.0, -1.0, 1.0)], generator())
