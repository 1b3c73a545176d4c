"""Which of many like events are worth a log line: a fault that every request meets must not fill the disk."""

from collections.abc import Hashable
from math import inf

#: Of like events one line is logged in so many seconds; the next one says how many were not.
LINE_EVERY_SECONDS = 1.0

#: Keys that are remembered: the oldest are forgotten, which costs at most a line each.
MOST_KEYS = 4096


class Sparing:
    """For one owner, on one thread."""

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[float, int]] = {}

    def suppressed(self, key: Hashable, now: float) -> int | None:
        """How many events like this one were not told since the last that was; None when this is not to be told.

        `now` is monotonic seconds.
        """
        told_at, suppressed = self._told.get(key, (-inf, 0))
        if now - told_at < LINE_EVERY_SECONDS:
            self._told[key] = told_at, suppressed + 1
            return None
        self._told.pop(key, None)
        self._told[key] = now, 0
        if len(self._told) > MOST_KEYS:
            del self._told[next(iter(self._told))]
        return suppressed
