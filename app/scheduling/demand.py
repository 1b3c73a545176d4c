"""What is asked of one model: when its queued requests are due, how many are to come, how many it missed of late."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import exp, inf

from app.domain.model import MergeKey
from app.scheduling.plans import Menu
from app.scheduling.request import QueuedRequest

#: How soon the arrival rate, and the part that was missed, forget: time constants in seconds.
RATE_SECONDS = 0.5
MISS_SECONDS = 10.0

#: Requests that were not missed are supposed before the first came, so that one miss of few does not say much.
SUPPOSED = 3.0

#: Weight of a new request in the running mean of what deadlines allow.
BUDGET_ALPHA = 0.1


class Demand:
    """Kept along with a queue where value decides. What fades is a number and the instant at which it was true.

    `dues` are the due instants of all that is queued, sorted: what an execution would make late is one bisection.
    """

    __slots__ = (
        "_arrived", "_arrived_at", "_asked", "_asked_at", "_key", "_missed", "budget", "changed", "dues", "menu",
        "mixed", "shortest", "watched",
    )  # fmt: skip

    def __init__(self) -> None:
        self.dues: list[float] = []
        self.changed = True
        """Whether anything happened since whoever looks cleared this."""
        self.watched = 0
        """The place in `dues` of the first that whoever looks reckons with."""
        self.mixed = False
        """Whether requests with different merge keys came since the queue was last empty."""
        self.budget = inf
        """Seconds from arrival to due instant, on average; infinite while no request had a deadline."""
        self.menu: Menu | None = None
        """The planner's memo, as is `shortest`: the seconds of the shortest dispatch."""
        self.shortest: float | None = None
        self._key: MergeKey | None = None
        self._arrived = 0.0
        self._arrived_at = -inf
        self._asked = 0.0
        self._missed = 0.0
        self._asked_at = -inf

    def inherit(self, other: "Demand") -> None:
        """Go on with what another generation of the model was asked for; what is queued stays there."""
        self.budget = other.budget
        self._arrived, self._arrived_at = other._arrived, other._arrived_at
        self._asked, self._missed, self._asked_at = other._asked, other._missed, other._asked_at

    def forget(self) -> None:
        """Drop the memos: a cost or the policy changed."""
        self.menu = self.shortest = None
        self.changed = True

    def enter(self, request: QueuedRequest) -> None:
        """A request is queued again."""
        self._insert(request)
        self.changed = True

    def leave(self, request: QueuedRequest) -> None:
        """A request leaves the queue, whatever becomes of it."""
        del self.dues[bisect_left(self.dues, request.due)]
        self.changed = True

    def start(self, requests: Sequence[QueuedRequest]) -> None:
        """Requests leave the queue together, to be run; mostly they are neighbours in `dues`."""
        gone = [request.due for request in requests]
        place = bisect_left(self.dues, gone[0]) if gone else 0
        if self.dues[place : place + len(gone)] == gone:
            del self.dues[place : place + len(gone)]
        else:
            for due in gone:
                del self.dues[bisect_left(self.dues, due)]
        self.changed = True

    def clear(self) -> None:
        """Everything leaves the queue."""
        self.dues.clear()
        self.changed = True

    def arrive(self, request: QueuedRequest) -> None:
        """A request that just came is queued; one without a deadline can be missed by nobody.

        Unless it is among the most urgent this changes nothing that does not change with time anyway.
        """
        if self._insert(request) <= self.watched:
            self.changed = True
        if request.due == inf:
            return
        now = request.enqueued_at
        self._arrived = 1.0 + self._arrived * _faded(now - self._arrived_at, RATE_SECONDS)
        self._arrived_at = now
        self._ask(now)
        budget = request.due - now
        self.budget = budget if self.budget == inf else self.budget + BUDGET_ALPHA * (budget - self.budget)

    def refuse(self, now: float) -> None:
        """Count a request that was refused on arrival: it was missed, and what runs makes it no later."""
        self._ask(now)
        self._missed += 1.0
        self.changed = True

    def drop(self, request: QueuedRequest, now: float, *, late: bool) -> None:
        """A request is dropped: missed if it would be `late` or is due already, else its caller left."""
        self.leave(request)
        if late or request.due <= now:
            self._missed += 1.0

    def answer(self, requests: Iterable[QueuedRequest], now: float) -> None:
        """Count those of the requests that just ran that were late."""
        self._missed += len([request for request in requests if request.due < now])

    def rate(self, now: float) -> float:
        """Requests per second that are to come."""
        return self._arrived * _faded(now - self._arrived_at, RATE_SECONDS) / RATE_SECONDS

    def quiet(self, now: float) -> bool:
        """Whether nothing is queued and next to nothing is to come."""
        return not self.dues and now - self._arrived_at > 10 * RATE_SECONDS

    @property
    def asked(self) -> float:
        """Requests of late, as far as they are remembered."""
        return self._asked

    @property
    def missed(self) -> float:
        """The part of them that was missed."""
        return min(self._missed / (self._asked + SUPPOSED), 1.0)

    def _insert(self, request: QueuedRequest) -> int:
        """Put a due instant in; its place."""
        if not self.dues:
            self._key, self.mixed = request.merge_key, False
        elif not self.mixed and request.merge_key is not self._key and request.merge_key != self._key:
            self.mixed = True
        place = bisect_left(self.dues, request.due)
        self.dues.insert(place, request.due)
        return place

    def _ask(self, now: float) -> None:
        factor = _faded(now - self._asked_at, MISS_SECONDS)
        self._asked = 1.0 + self._asked * factor
        self._missed *= factor
        self._asked_at = now


def _faded(seconds: float, constant: float) -> float:
    return exp(-seconds / constant) if seconds < inf else 0.0
