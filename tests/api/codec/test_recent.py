"""The bounded memory of recent values."""

from app.api.codec.recent import Recent


def test_value_is_remembered():
    recent: Recent[object, int] = Recent(2)
    recent.put("a", 1)
    assert recent.get("a") == 1
    assert recent.get("b") is None


def test_memory_is_bounded():
    recent: Recent[object, int] = Recent(3)
    for number in range(1000):
        recent.put(number, number)
        assert len(recent) <= 6


def test_entry_that_is_asked_for_stays():
    recent: Recent[object, int] = Recent(3)
    recent.put("hot", 1)
    for number in range(100):
        recent.put(number, number)
        assert recent.get("hot") == 1


def test_most_recent_entries_are_kept():
    recent: Recent[object, int] = Recent(3)
    for number in range(100):
        recent.put(number, number)
    assert [recent.get(number) for number in (99, 98, 97)] == [99, 98, 97]


def test_entry_that_nobody_asks_for_goes():
    recent: Recent[object, int] = Recent(3)
    recent.put("cold", 1)
    for number in range(6):
        recent.put(number, number)
    assert recent.get("cold") is None
