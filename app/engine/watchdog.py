"""Looks, now and then, whether an execution takes longer than it may."""

import asyncio
from collections.abc import Callable

from app.runtime.dispatcher import Dispatcher

#: Looks per timeout: an execution is ended at most this part of the timeout late.
_LOOKS = 20


class Watchdog:
    """A timer on the event loop. `device_lost` turns true when an execution does not even end when it is told to.

    `on_lost` is called once, when nothing can be executed any more.
    """

    def __init__(self, dispatcher: Dispatcher, timeout: float) -> None:
        self._dispatcher = dispatcher
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self.device_lost = False
        self.on_lost: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to look (event loop)."""
        self._timer = asyncio.get_running_loop().call_later(self._timeout / _LOOKS, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._dispatcher.end_forsaken()  # again: what was asked of a run before it began is lost
        self.device_lost = self._dispatcher.end_overdue(self._timeout)
        if self.on_lost is not None and (self.device_lost or not self._dispatcher.alive):
            self.on_lost()
            self.on_lost = None
        self.start()
