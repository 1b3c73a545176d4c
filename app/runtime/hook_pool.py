"""The few threads that run user code and large decodes."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HookPool:
    """A fixed pool of named threads (`hook_0`, `hook_1`, …). Kept small: each thread competes for the interpreter."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = 0

    @property
    def depth(self) -> int:
        """Jobs handed over and not finished (event loop)."""
        return self._waiting

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in the pool and await it (event loop). A cancelled job that has not begun is not begun."""
        self._waiting += 1
        try:
            return await asyncio.wrap_future(self._executor.submit(fn, *args, **kwargs))
        finally:
            self._waiting -= 1

    def submit(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Run `fn` in the pool (any thread)."""
        return self._executor.submit(fn, *args, **kwargs)

    def stop(self) -> None:
        """Drop what has not begun and join the threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)
