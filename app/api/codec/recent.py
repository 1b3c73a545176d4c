"""A bounded memory of recent values: what is asked for stays, what is not goes, and a hit costs one dict lookup."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps at least the `capacity` most recently used entries and never more than twice as many.

    Two generations: entries are put into the young one; when that is full it becomes the old one, and what was old is
    forgotten. A hit in the old one moves the entry forward. Any thread: every step is one operation on one dict, and
    a race costs at most a forgotten entry, which its owner computes again.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value of `key`, or None."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember a value."""
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, {}
        self._young[key] = value
