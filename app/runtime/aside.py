"""One process beside the server that answers questions, for work that would hold the interpreter for long."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from app.domain.errors import ServingError
from app.runtime.hook_pool import HookPool
from app.runtime.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Unavailable(Exception):
    """The process cannot be started."""


class Aside:
    """A thread, and the process that it asks: started when the first question comes, and again after it has died.

    `command` is the Python that the process executes; what is asked and answered is its business. Jobs take turns.
    """

    def __init__(self, name: str, command: str) -> None:
        self._name = name
        self._command = command
        self._pool = HookPool(name, 1)
        self._worker: Worker | None = None

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run `fn`, which may `ask`, on the thread (event loop)."""
        return self._pool.run(fn, *args, **kwargs)

    def ask(self, question: object) -> Any:
        """Ask the process and wait for its answer, without the interpreter (the thread of `run`).

        Raises `Unavailable` where there is none, and `ServingError` when it died over the question.
        """
        worker = self._worker
        if worker is not None:
            try:
                worker.channel.send(question)
            except ConnectionError:  # it ended while it had nothing to do
                worker = None
        if worker is None:
            worker = self._start(question)
        try:
            return worker.channel.receive()
        except (EOFError, OSError):
            self._worker = None
            fate = worker.end()
            logger.error("%s: the process %s", self._name, fate)
            raise ServingError("the process for large requests and answers ended") from None

    def give_up(self, error: ServingError) -> None:
        """Fail every future that somebody awaits (event loop)."""
        self._pool.give_up(error)

    def close(self) -> None:
        """Let the process end after what it does (any thread; does not wait)."""
        self._pool.stop(wait=False)
        if self._worker is not None:
            self._worker.finish()

    def _start(self, question: object) -> Worker:
        try:
            worker = self._worker = Worker(self._name, self._name, self._command)
            worker.channel.send(question)
        except OSError as error:
            self._worker = None
            raise Unavailable(str(error)) from error
        return worker
