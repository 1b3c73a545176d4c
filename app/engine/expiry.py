"""One request's deadline: when it passes, whatever the request awaits fails."""

import asyncio
from typing import Any, Protocol, TypeVar

from app.domain.errors import DeadlineExceeded

T = TypeVar("T")


class Watch(Protocol):
    """Lets a deadline fail the future that a request is about to await."""

    def __call__(self, future: asyncio.Future[T], /) -> asyncio.Future[T]: ...


def unwatched(future: asyncio.Future[T], /) -> asyncio.Future[T]:
    """For a request without a deadline."""
    return future


class Expiry:
    """A timer on the event loop and the future that the request awaits now. Event loop only.

    Not `asyncio.timeout`: that cancels the running task, and requests of the fast door run without one.
    """

    __slots__ = ("_awaited", "_passed", "_timer")

    def __init__(self, seconds: float) -> None:
        self._awaited: asyncio.Future[Any] | None = None
        self._passed = False
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._expire)

    def watch(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        """Fail `future` with `DeadlineExceeded` when the deadline passes; the request awaits nothing else."""
        self._awaited = future
        if self._passed:
            self._expire()
        return future

    def cancel(self) -> None:
        """The request has its answer, or another deadline."""
        self._timer.cancel()

    def _expire(self) -> None:
        self._passed = True
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(DeadlineExceeded("the deadline passed before the answer was ready"))
