"""The one background thread and the one lock: asks the scheduler, runs outside the lock, tells what it cost."""

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TypeVar

from app.domain.errors import DeadlineExceeded, ServingError, ShuttingDown
from app.runtime.commands import CommandQueue
from app.runtime.executor import Executes, Outcome
from app.runtime.pending import PendingRequest, deliver, fail, refuse_late
from app.runtime.recent import DispatchLog
from app.scheduling.scheduler import Decision, Dispatch, Scheduler
from app.scheduling.stats import ModelStats, SchedulerStats, Usage

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: `step` returns this instant when there may be more to do at once.
NOW = -inf

#: Starts what weight load is needed: (models wanted, models with queued work, now) → when to look again.
Tend = Callable[[Sequence[str], Collection[str], float], float]


class Dispatcher:
    """Owns the device. `submit`, `withdraw`, `call`, `locked` and `stats` are for any thread."""

    def __init__(self, scheduler: Scheduler[PendingRequest], executor: Executes, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler  # under _cond
        self._executor = executor  # dispatcher thread
        self._clock = clock
        self._lock = threading.Lock()
        self._cond = threading.Condition(self._lock)  # the same lock: entering it through the condition is Python code
        self._commands = CommandQueue()  # under _cond
        self._sleeping = False  # under _cond
        self._woken = False  # under _cond: something came since the last decision
        self._stopped = False  # under _cond
        self.tend: Tend | None = None  # dispatcher thread; set before it starts
        self.loading = False  # dispatcher thread: weights are on their way, and until they came none are asked for
        self.log = DispatchLog()  # dispatcher thread writes, any thread reads
        self._free_since = -inf  # dispatcher thread: when the last execution ended
        self._running: tuple[PendingRequest, ...] = ()  # under _cond, as are the next two
        self._running_since = 0.0
        self._timed_out = False
        self._failure: BaseException | None = None
        self._background = threading.Thread(target=self._run, name="dispatcher", daemon=True)  # C has a `_thread`

    # any thread

    def admit(self, model_id: str, deadline: float, now: float) -> None:
        """Refuse early what `submit` would refuse. Raises `QueueFull`, `DeadlineInfeasible` or `ModelNotFound`."""
        with self._lock:
            self._scheduler.admit(model_id, deadline, now)

    def learn_replies(self, replies: Iterable[tuple[str, float]]) -> None:
        """Learn by (model id, seconds) what followed the execution until the answer was ready."""
        with self._lock:
            for model_id, seconds in replies:
                self._scheduler.record_reply(model_id, seconds)

    def submit(self, requests: Sequence[PendingRequest], now: float, *, wake: bool = True) -> None:
        """Queue requests, all or none.

        Raises `QueueFull`, `DeadlineInfeasible`, `ModelNotFound`, `InvalidRequest` or `ShuttingDown`.
        With `wake` False a sleeping dispatcher sleeps on until `wake()`: a caller that has more to submit spares it
        a turn, and each turn of the dispatcher costs the event loop the interpreter.
        """
        with self._lock:
            if self._stopped:
                raise ShuttingDown("the server is shutting down")
            self._scheduler.enqueue(requests, now)
            if wake:
                self._wake()
            else:
                self._woken = True

    def wake(self) -> None:
        """Make the thread look at what was submitted."""
        with self._lock:
            self._wake()

    def withdraw(self, requests: Sequence[PendingRequest]) -> tuple[PendingRequest, ...]:
        """Take requests out of their queues; those that are returned will not run and are the caller's to answer."""
        now = self._clock()
        with self._lock:
            return self._scheduler.withdraw(requests, now)

    def end_forsaken(self) -> None:
        """End the running execution when none of its callers waits any more (event loop)."""
        with self._lock:
            if self._running and all(request.future.done() for request in self._running):
                # Under the lock, although it is the backend's: the run it is meant for cannot be followed by another.
                self._executor.terminate()

    def end_overdue(self, timeout: float) -> bool:
        """End an execution that takes longer than `timeout` seconds; its callers get `dispatch_timeout` (any thread).

        True when it has not ended within as long again: the device is lost.
        """
        with self._lock:
            running, seconds = self._running, self._clock() - self._running_since
            if not running or seconds < timeout:
                return False
            told, self._timed_out = self._timed_out, True
        if not told:  # before it is ended, which fails it: they would hear of that instead
            logger.error("an execution of model %s takes longer than %g s: ended", running[0].model_id, timeout)
            fail(running, DeadlineExceeded(f"the execution took longer than {timeout:g} s", reason="dispatch_timeout"))
        with self._lock:
            if self._running is running:
                self._executor.terminate()
        return seconds >= 2 * timeout

    def call(self, command: Callable[[], T], *, executes: bool = False) -> concurrent.futures.Future[T]:
        """Run `command` on the dispatcher thread before the next dispatch.

        One that `executes` a model holds the device, so between two of these comes a dispatch, if one is due.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = command()
            except BaseException as error:  # a command's failure is its caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._stopped:
                future.set_exception(ShuttingDown("the server is shutting down"))
            else:
                self._commands.put(run, executes=executes)
                self._wake()
        return future

    def post(self, command: Callable[[], None]) -> None:
        """As `call`, for who does not wait: an error is logged, since nobody else would hear of it."""

        def run() -> None:
            try:
                command()
            except Exception:  # the command's failure is nobody else's: the thread goes on
                logger.exception("a command of the server's own failed")

        self.call(run)

    @contextmanager
    def locked(self) -> Iterator[Scheduler[PendingRequest]]:
        """The scheduler, under the lock. Nothing slow and nothing foreign belongs in the block."""
        with self._lock:
            yield self._scheduler
            self._wake()

    def stats(self, *, models: bool = True) -> SchedulerStats:
        """One consistent snapshot of counters and averages, with or without the single models."""
        now = self._clock()
        with self._lock:
            return self._scheduler.stats(now) if models else self._scheduler.report.overview(now)

    def sample(self, model_ids: Sequence[str], used: Mapping[str, Usage]) -> dict[str, ModelStats]:
        """The models that were left out, a few at a time: the device waits for the lock meanwhile."""
        with self._lock:
            return self._scheduler.report.sample(model_ids, used)

    @property
    def alive(self) -> bool:
        """False once the thread has died of something that it did not expect."""
        return self._failure is None

    def start(self) -> None:
        """Start the thread."""
        self._background.start()

    def give_up(self, error: ServingError) -> None:
        """Fail everything queued and everything running; the execution that runs ends unheard."""
        self._fail_queued(error)
        fail(self._running, error)

    def stop(self, timeout: float) -> None:
        """End the thread after its running execution, waiting so many seconds; what is queued fails with `shutdown`."""
        with self._lock:
            self._stopped = True
            self._wake()
        if self._background.ident is not None:
            self._background.join(timeout)
        self._fail_queued(ShuttingDown("the server is shutting down"))
        if not self._background.is_alive():  # else they are its to run, when its execution ends
            self._run_commands()

    # dispatcher thread

    def step(self) -> float:
        """One turn, without waiting: commands, else at most one dispatch. Returns when to look again."""
        now = self._clock()
        with self._lock:
            commands = self._commands.take()
            self._woken = bool(self._commands)
            wanted = () if commands or self.loading or self.tend is None else self._scheduler.wanted(now)
            queued = self._scheduler.busy() if wanted else frozenset()
            decision = None if commands or wanted else self._decide(now)
        for command in commands:
            command()
        if commands:
            return NOW
        look_at = inf
        if decision is None:  # before the decision: whoever leaves for a load must not have been chosen
            look_at = self.tend(wanted, queued, now) if self.tend is not None else inf
            now = self._clock()  # freeing weights may have taken a while, and what is due meanwhile must not run
            with self._lock:
                decision = self._decide(now)
        if decision.expired:
            refuse_late(decision.expired, now, self._scheduler.report.name_of)  # names change on this thread alone
        dispatch = decision.dispatch
        if dispatch is None:
            return NOW if decision.expired else min(decision.wake_at, look_at)
        self._settle(dispatch, self._executor.execute(dispatch))
        return NOW

    def _decide(self, now: float) -> Decision[PendingRequest]:
        """Under the lock."""
        decision = self._scheduler.next_decision(now)
        if decision.dispatch is not None:
            self._running, self._running_since, self._timed_out = decision.dispatch.requests, now, False
        return decision

    def _settle(self, dispatch: Dispatch[PendingRequest], outcome: Outcome) -> None:
        """Book the dispatch, then answer: whoever has an answer finds it in the counters."""
        parts, seconds, error, begun_at, ended_at, load_seconds = outcome
        gap = 0.0 if load_seconds else max(begun_at - max(self._free_since, dispatch.waiting_since), 0.0)
        self._free_since = ended_at
        self.log.ran(dispatch, outcome, gap)
        failed: Sequence[PendingRequest] = dispatch.requests
        now = self._clock()
        with self._lock:
            self._running = ()
            if error is None:
                self._scheduler.record(dispatch, seconds, now, gap)
            elif not outcome.may_be_one_requests_fault:
                self._scheduler.fail(dispatch, seconds, now)
            else:
                wanted = [request for request in failed if not request.future.done()]
                failed = self._scheduler.retry(dispatch, wanted, seconds, now)
        if parts is not None:
            deliver(dispatch.requests, parts)
        elif error is not None:
            fail(failed, error)
            if error.code == "device_lost":  # for good: every later execution in this process would fail as well
                raise RuntimeError("the device is lost")

    def _run(self) -> None:
        try:
            while self._wait_until(self.step()):
                pass
        except BaseException as error:  # never swallowed: the process turns not-live
            logger.critical("the dispatcher died", exc_info=error)
            self._failure = error
            with self._lock:
                self._stopped = True
            died = ServingError("the dispatcher died; the process must be restarted")
            fail(self._running, died)
            self._fail_queued(died)
            self._run_commands()

    def _wait_until(self, wake_at: float) -> bool:
        """Sleep until `wake_at` or until something comes; False when the thread is to end."""
        with self._lock:
            while not self._woken and not self._stopped:
                seconds = wake_at - self._clock()
                if seconds <= 0:
                    break
                self._sleeping = True
                self._cond.wait(None if wake_at == inf else min(seconds, threading.TIMEOUT_MAX))
                self._sleeping = False
            return not self._stopped or bool(self._commands)

    def _wake(self) -> None:
        """Under the lock: make the thread look again; it is signalled only when it sleeps."""
        self._woken = True
        if self._sleeping:
            self._sleeping = False
            self._cond.notify()

    def _run_commands(self) -> None:
        """Run what was asked for before the end: somebody waits for each."""
        with self._lock:
            commands = self._commands.take_all()
        for command in commands:
            command()

    def _fail_queued(self, error: ServingError) -> None:
        with self._lock:
            orphans = self._scheduler.drain()
        fail(orphans, error)
