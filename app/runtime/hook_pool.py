"""The few threads that run user code and large decodes."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from app.domain.errors import ServingError

P = ParamSpec("P")
T = TypeVar("T")


class HookPool:
    """A fixed pool of named threads (`hook_0`, `hook_1`, …). Kept small: each thread competes for the interpreter."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = 0
        self._awaited: set[asyncio.Future[Any]] = set()

    @property
    def depth(self) -> int:
        """Jobs handed over and not finished (event loop)."""
        return self._waiting

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run `fn` in the pool (event loop). A job whose future is settled early is not begun, or its result unused."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        held = [partial(fn, *args, **kwargs)]
        job = self._executor.submit(lambda: held.pop()())
        self._waiting += 1

        # Given the job instead of closing over it: it keeps its callbacks, and these would keep its result.
        def settle(job: concurrent.futures.Future[T]) -> None:
            self._waiting -= 1
            if future.done():
                return
            if job.cancelled():
                future.cancel()
            elif (error := job.exception()) is not None:
                future.set_exception(_ordinary(error))
            else:
                future.set_result(job.result())

        def finished(job: concurrent.futures.Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, job)

        self._awaited.add(future)
        future.add_done_callback(self._awaited.discard)

        def forget(_: asyncio.Future[T]) -> None:
            if job.cancel():
                held.clear()  # the executor keeps a cancelled job until its turn comes: not its arguments

        future.add_done_callback(forget)
        job.add_done_callback(finished)
        return future

    def give_up(self, error: ServingError) -> None:
        """Fail every future that somebody awaits (event loop); a job that runs is let run."""
        for future in tuple(self._awaited):
            if not future.done():
                future.set_exception(type(error)(error.message, reason=error.code))

    def stop(self, *, wait: bool = True) -> None:
        """Drop what has not begun; with `wait`, join the threads."""
        self._executor.shutdown(wait=wait, cancel_futures=True)


def _ordinary(error: BaseException) -> Exception:
    """The error as the event loop may see it: user code that exits, or cancels itself, fails its own request alone."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
