"""Runs a coroutine without an asyncio task: it begins at once and goes on straight from the futures it awaits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Story(Generic[T]):
    """One coroutine on its way. Event loop only.

    A task costs a turn of the loop before its first step, a weak reference in a global set and a context, a tenth of
    what a small request costs in all. In return the coroutine may await only futures of the loop, directly or through
    other coroutines: `asyncio.current_task()` is None, so `asyncio.timeout` does not work in it.

    `ended` is called once, when the coroutine returns or raises, with the story and what it returned and raised.
    """

    __slots__ = ("_awaited", "_cancelled", "_coroutine", "_ended")

    def __init__(
        self,
        coroutine: Coroutine[Any, None, T],
        ended: Callable[["Story[T]", T | None, BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._ended = ended
        self._awaited: asyncio.Future[Any] | None = None
        self._cancelled = False

    def begin(self) -> None:
        """Run up to the first future that is not done."""
        self._step(None)

    def cancel(self, msg: object = None) -> None:
        """Raise `CancelledError` where the coroutine waits; nothing when it has ended. As `asyncio.Task.cancel`."""
        if self._awaited is not None and not self._awaited.cancel(msg):
            self._cancelled = True  # what it waited for is done: it is resumed in this turn of the loop

    def _step(self, _: asyncio.Future[Any] | None) -> None:
        self._awaited = None
        coroutine = self._coroutine
        try:
            if self._cancelled:
                self._cancelled = False
                future = coroutine.throw(asyncio.CancelledError())
            else:
                future = coroutine.send(None)
        except StopIteration as end:
            self._ended(self, end.value, None)
        except BaseException as error:
            self._ended(self, None, error)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
        else:
            if future is None:  # a bare yield, as in `asyncio.sleep(0)`: go on in the next turn
                future = asyncio.get_running_loop().create_future()
                future.set_result(None)
            self._awaited = future
            # The mark by which a future tells a task that it is awaited and not merely yielded.
            future._asyncio_future_blocking = False
            future.add_done_callback(self._step)
