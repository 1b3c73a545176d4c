"""Like events are told once a second, with a count of the others."""

from app.runtime import sparing
from app.runtime.sparing import Sparing


def test_of_like_events_one_in_a_second_is_told_and_says_how_many_were_not():
    told = Sparing()
    assert [told.suppressed("a", at) for at in (0.0, 0.1, 0.9, 1.0, 1.1, 2.5)] == [0, None, None, 2, None, 1]


def test_others_are_told_apart():
    told = Sparing()
    assert [told.suppressed(("m", code), 0.0) for code in ("a", "b", "a")] == [0, 0, None]


def test_no_more_keys_are_remembered_than_may_be_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr(sparing, "MOST_KEYS", 2)
    told = Sparing()
    assert [told.suppressed(key, 0.0) for key in ("a", "b", "c", "b", "a")] == [0, 0, 0, None, 0]
