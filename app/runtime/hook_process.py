"""Hooks in processes of their own: what looks like a bundle's hooks asks a worker process and waits for its answer.

The thread that waits does so without the interpreter: hooks that compute in Python cost the server's threads nothing
but a core.
"""

import logging
import queue
import threading
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic

from app.domain.errors import BundleError, DeadlineExceeded, HookFailed, ModelNotFound
from app.domain.tensors import Tensors
from app.repository.files import HOOKS_FILE, MANIFEST_FILE
from app.repository.hooks import HookContext, Hooks, read_source
from app.runtime.hook_worker import Answer, Question
from app.runtime.worker import Worker

logger = logging.getLogger(__name__)

_COMMAND = "from app.runtime.hook_worker import main; main()"

#: The key in a context's state of the state itself, pickled: only the worker knows what is in it.
_PICKLED = "pickled"


def isolate(bundle_dir: Path, processes: int) -> Hooks:
    """Start processes for the hooks of a bundle; hooks that call them. Raises `BundleError` naming the file."""
    source = read_source(bundle_dir)
    if source is None:
        raise BundleError(
            f"{bundle_dir / MANIFEST_FILE}: hooks.isolation: process, but there is no {HOOKS_FILE}: add it, or remove "
            f"the key"
        )
    workers = HookWorkers(bundle_dir, source, processes)
    return Hooks(close=workers.close, **{name: partial(workers.call, name) for name in workers.defined})


class HookWorkers:
    """The worker processes of one loaded bundle. One that has ended is replaced when the next call comes to it.

    They execute the source as it was when the bundle was loaded, whatever the file is by then.
    """

    def __init__(self, bundle_dir: Path, source: bytes, processes: int) -> None:
        self._bundle_dir = bundle_dir
        self._source = source
        self._closed = threading.Event()
        self._workers: list[Worker] = []
        try:
            for _ in range(processes):
                self._workers.append(self._start())
            for worker in self._workers:
                self.defined = self._wait_ready(worker)
        except BaseException:
            self.close()
            raise
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(processes):
            self._idle.put(place)

    def call(self, hook: str, tensors: Tensors, context: HookContext) -> Tensors:
        """Run a hook in the worker that is free next (hook thread).

        Raises what the hook raised as `ValueError`, as its own `ServingError`, or else as `HookError`; `HookFailed`
        when the process died; `DeadlineExceeded`, whereupon a worker still in the call is ended and its place is
        free; `ModelNotFound` when it had been closed.
        """
        state = context.state.get(_PICKLED)
        question = Question(hook, dict(tensors), context.model, dict(context.parameters), context.deadline, state)
        try:
            place = self._idle.get(timeout=_remaining(context.deadline))
        except queue.Empty:
            raise DeadlineExceeded("the deadline passed before a hook process was free") from None
        try:
            answer = self._ask(place, question)
        finally:
            self._idle.put(place)
        if answer.error is not None:
            raise answer.error
        if answer.state is not None:
            context.state[_PICKLED] = answer.state
        return answer.tensors

    def close(self) -> None:
        """Let the processes end, each after the call it is in (any thread; does not wait)."""
        self._closed.set()
        for worker in self._workers:
            worker.finish()

    def _ask(self, place: int, question: Question) -> Answer:
        worker = self._workers[place]
        try:
            worker.channel.send(question)
        except ConnectionError:  # it ended while it had nothing to do
            worker = self._replace(place, question)
            worker.channel.send(question)
        try:
            answer: Answer = worker.channel.receive(_remaining(question.deadline))
        except TimeoutError:
            worker.end()  # it works for nobody, and others wait for its place
            raise DeadlineExceeded(f"the deadline passed in {question.hook}") from None
        except (EOFError, OSError):
            fate = worker.end()
            raise HookFailed(f"{question.hook} of model {question.model!r} failed: its process {fate}") from None
        return answer

    def _replace(self, place: int, question: Question) -> Worker:
        gone = ModelNotFound(f"model {question.model!r} was unloaded")
        if self._closed.is_set():
            raise gone
        logger.warning("model %s: starting another hook process", question.model)
        try:
            worker = self._start()
            self._wait_ready(worker)
        except BundleError as error:
            logger.error("model %s: no other hook process: %s", question.model, error)
            message = f"{question.hook} of model {question.model!r} failed: its process cannot be started"
            raise HookFailed(message) from error
        self._workers[place] = worker
        if self._closed.is_set():  # meanwhile, and this one may not have been there to be told
            worker.finish()
            raise gone
        return worker

    def _start(self) -> Worker:
        try:
            worker = Worker(str(self._bundle_dir), "hook_process", _COMMAND)
            worker.channel.send((self._bundle_dir, self._source))
        except OSError as error:
            raise BundleError(f"{self._bundle_dir / HOOKS_FILE}: its process cannot be started: {error}") from error
        return worker

    def _wait_ready(self, worker: Worker) -> tuple[str, ...]:
        """Wait until the hooks are loaded; the names of those there are. Raises `BundleError`."""
        try:
            answer = worker.channel.receive()
        except (EOFError, OSError):
            fate = worker.end()
            raise BundleError(f"{self._bundle_dir / HOOKS_FILE}: import failed: the process {fate}") from None
        if isinstance(answer, BundleError):
            raise answer
        names: tuple[str, ...] = answer
        return names


def _remaining(deadline: float) -> float | None:
    """Seconds that are left; None for a request without a deadline."""
    return None if deadline == inf else max(deadline - monotonic(), 0.001)
