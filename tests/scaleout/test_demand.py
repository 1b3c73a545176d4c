"""What models ask for, as it is learned, and when models are placed anew."""

import pytest

from app.scaleout.demand import CompactionPace, Counts, DemandBook, Meter, RepackTrigger, Window, models_to_reload


def test_lpt_030_a_repack_is_due_when_the_fleet_has_computed_its_budget():
    trigger = RepackTrigger(first=10.0, then=60.0)
    assert not trigger.spend(9.0)
    assert trigger.spend(1.0)
    assert not trigger.spend(59.0)
    assert trigger.spend(1.0)


def test_lpt_030_what_operators_ask_for_and_the_start_leave_the_first_budget_for_traffic():
    """Neither of them spends: only what was computed does."""
    trigger = RepackTrigger(first=10.0, then=60.0)
    assert not trigger.spend(0.0)
    assert trigger.spend(10.0)


def test_lpt_030_a_worker_that_started_again_adds_nothing():
    meter = Meter()
    assert meter.read({("w0", "m"): Counts(10, 10, 5.0)}) == {"m": Window()}
    assert meter.read({("w0", "m"): Counts(12, 11, 6.0)}) == {"m": Window(2, 1, 1.0)}
    assert meter.read({("w0", "m"): Counts(1, 1, 0.5)}) == {"m": Window(0, 0, 0.0)}
    assert meter.read({("w0", "m"): Counts(3, 2, 1.0)}) == {"m": Window(2, 1, 0.5)}
    assert not RepackTrigger(1.0, 1.0).spend(-5.0)


def test_what_all_workers_counted_is_added_up():
    meter = Meter()
    meter.read({("w0", "m"): Counts(0, 0, 0.0), ("w1", "m"): Counts(0, 0, 0.0)})
    found = meter.read({("w0", "m"): Counts(1, 1, 0.5), ("w1", "m"): Counts(2, 2, 1.0)})
    assert found == {"m": Window(3, 3, 1.5)}


def test_lpt_031_demand_is_the_rate_of_arrivals_times_the_cost_of_a_request():
    book = DemandBook(halflife=10.0)
    book.fold({"m": Window(100, 50, 1.0)}, seconds=10.0)
    assert book.load("m") == pytest.approx(10 * 0.02)  # half of them are still queued, and count as much
    book.fold({"m": Window(0, 0, 0.0), "other": Window(10, 10, 10.0)}, seconds=10.0)
    assert book.load("m") == pytest.approx(5 * 0.02)  # after one half-life, half of the rate


def test_lpt_031_the_clock_of_the_averages_is_compute():
    book = DemandBook(halflife=10.0)
    book.fold({"m": Window(100, 100, 1.0)}, seconds=10.0)
    book.fold({"m": Window(0, 0, 0.0)}, seconds=36_000.0)  # a night in which nothing was computed
    assert book.load("m") == pytest.approx(0.1)


def test_lpt_031_the_look_at_the_start_has_no_length_and_teaches_no_rate():
    book = DemandBook(halflife=10.0)
    book.fold({"m": Window(100, 100, 1.0)}, seconds=0.0)
    assert book.load("m") == 0.0
    assert book.load("never seen") == 0.0


def test_models_that_are_gone_are_forgotten():
    book = DemandBook(halflife=10.0)
    book.fold({"m": Window(1, 1, 1.0), "n": Window(1, 1, 1.0)}, seconds=1.0)
    book.forget(["n"])
    assert (book.load("m"), book.load("n")) == (0.0, 1.0)


def test_lpt_033_compaction_follows_moves_no_more_often_than_its_interval():
    pace = CompactionPace()
    moves = [True, True, False, False, True, True, False, True]
    assert [pace.due("eager", 2, moved=each) for each in moves] == [
        False, True, False, False, True, False, False, True,
    ]  # fmt: skip


def test_lpt_033_off_never_counts():
    pace = CompactionPace()
    assert [pace.due("off", 2, moved=True) for _ in range(3)] == [False] * 3
    assert [pace.due("eager", 2, moved=True) for _ in range(2)] == [False, True]


def test_lpt_033_scheduled_names_the_workers_models_and_eager_none():
    assert models_to_reload("scheduled", ["b", "a"]) == ["a", "b"]
    assert models_to_reload("eager", ["b", "a"]) == []
