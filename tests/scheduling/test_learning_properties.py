"""Whatever is measured, and however little, an estimate is a time: finite, not negative, or not known."""

from math import inf, isfinite

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.learning import CostBook, LearnedReserve, UsageLedger
from tests.scheduling.simulation import PATIENT

#: From a clock too coarse to see the run, to one that was suspended.
SECONDS = st.one_of(st.sampled_from([0.0, 5e-324, 1e-9, 0.01, 86_400.0]), st.floats(0.0, 1e9))
SAMPLES = st.lists(SECONDS, max_size=5)


def is_time(seconds):
    return isfinite(seconds) and seconds >= 0.0


@PATIENT
@given(SAMPLES, SAMPLES, st.sampled_from([1e-9, 0.2, 1.0]), st.integers(1, 9))
def test_costs_are_times_from_the_first_sample_on(samples, loads, alpha, rows):
    book = CostBook(alpha)
    for now, seconds in enumerate(samples):
        book.observe("m", "default", 4, seconds, float(now))
    for now, seconds in enumerate(loads):
        book.observe_load("m", seconds, float(now))
    estimate = book.estimate("m", "default", 4)
    assert (estimate is None) == (not samples)
    assert estimate is None or min(samples) * (1 - 1e-9) <= estimate <= max(samples) * (1 + 1e-9)
    assert is_time(book.curve("m", "default").least(rows))
    assert book.curve("m", "default").least(rows) == (estimate if estimate is not None and rows <= 4 else 0.0)
    assert is_time(book.estimate_load("m"))


@PATIENT
@given(st.lists(SECONDS, max_size=150))
def test_the_reserve_is_one_of_the_samples_or_nothing(samples):
    reserve = LearnedReserve()
    for seconds in samples:
        reserve.observe(seconds)
    assert reserve.seconds in {0.0, *samples}
    assert len(samples) >= LearnedReserve.LEAST_SAMPLES or reserve.seconds == 0.0


@PATIENT
@given(
    st.lists(st.tuples(st.sampled_from("ab"), SECONDS, st.floats(0.0, 1e7)), max_size=8),
    st.sampled_from([1e-3, 30.0, 1e9]),
)
def test_use_is_a_time_however_far_apart_the_charges_are(charges, halflife):
    ledger = UsageLedger(halflife)
    now = 0.0
    for account, seconds, pause in charges:
        now += pause
        ledger.charge(account, seconds, now)
    for account in "ab":
        charged = sum(seconds for name, seconds, _ in charges if name == account)
        assert 0.0 <= ledger.recent(account, now) <= charged * (1 + 1e-9)
        assert 0.0 <= ledger.standing(account) < inf
