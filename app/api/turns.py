"""Large bodies and answers take turns: one piece of one of them in a turn of the event loop."""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Any


class Turns:
    """Who wants to read or write another large piece, first come, first served. Event loop only.

    One for all connections of a loop: else whoever asks for little would wait for a piece of each of them.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    @classmethod
    def shared(cls, state: dict[str, Any], loop: AbstractEventLoop) -> "Turns":
        """Those of a lifespan state, which all connections share."""
        turns: Turns = state.setdefault("turns", cls(loop))
        return turns

    def ask(self, go: Callable[..., None], *args: Any) -> None:
        """Have `go(*args)` called in a turn of its own, never in this one."""
        self._waiting.append((go, args))
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        go, args = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._next)
        go(*args)
