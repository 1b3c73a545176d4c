"""Which generations requests still refer to, so that a reload never takes one away under a request."""

import asyncio
from collections.abc import Callable

from app.runtime.registry import Generation


class Leases:
    """Counts the requests in flight, in all and per generation. Event loop only."""

    def __init__(self, free: Callable[[Generation], None]) -> None:
        self._free = free
        self._idle: asyncio.Event | None = None
        self.total = 0

    def take(self, generation: Generation) -> None:
        """A request begins on a generation that the registry has just resolved."""
        self.total += 1
        generation.holders.count += 1

    def give_back(self, generation: Generation) -> None:
        """The request has ended; a retired generation without requests is freed."""
        self.total -= 1
        holders = generation.holders
        holders.count -= 1
        if holders.retired and not holders.count:
            self._free(generation)
        if self._idle is not None and not self.total:
            self._idle.set()

    def retire(self, generation: Generation) -> None:
        """The registry resolves the name to a newer generation: free this one once its requests are done."""
        generation.holders.retired = True
        if not generation.holders.count:
            self._free(generation)

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        if self._idle is None:
            self._idle = asyncio.Event()
        while self.total:
            self._idle.clear()
            await self._idle.wait()
