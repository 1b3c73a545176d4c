"""The dispatcher's thread against others that come at the worst moment; bounded by counts, never by time."""

import concurrent.futures
import sys
import threading
import time
from math import inf
from random import Random

import pytest

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.model import MergeKey
from app.runtime.dispatcher import NOW, Dispatcher
from app.runtime.executor import Outcome
from app.runtime.pending import DispatchFacts, Part, PendingRequest
from app.scheduling.scheduler import Scheduler
from tests.builders import rows_of, spec

ROW = {"x": rows_of(0, 1)}


class Echo:
    """Answers each request with its own inputs; `during` is called while a dispatch runs."""

    def __init__(self):
        self.sizes = []
        self.during = lambda dispatch: None

    def execute(self, dispatch):
        self.sizes.append(len(dispatch.requests))
        self.during(dispatch)
        facts = DispatchFacts(0.0, 0.0, 0.0, dispatch.rows, dispatch.size)
        return Outcome([Part(request.inputs, facts) for request in dispatch.requests], 0.0, None, 0.0, 0.0)

    def terminate(self):
        pass


@pytest.fixture
def executor():
    return Echo()


@pytest.fixture(params=[0.0, 0.01], ids=["at once", "in company"])
def wait_ms(request):
    """Longest wait for company: with it the thread sleeps until an instant, without it until it is woken."""
    return request.param


@pytest.fixture
def dispatcher(executor, wait_ms):
    scheduler: Scheduler[PendingRequest] = Scheduler(SchedulerConfig(discipline="fifo", max_queue_depth=10_000))
    scheduler.add_model("m", spec(), ModelPolicy(max_wait_ms=wait_ms))
    made = Dispatcher(scheduler, executor, time.monotonic)
    yield made
    made.stop(30)


@pytest.fixture
def impatient():
    """The interpreter changes threads as often as it can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def pending(name="m"):
    return PendingRequest(name, MergeKey("default"), 1, time.monotonic(), inf, ROW, concurrent.futures.Future())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("separately", [False, True], ids=["submit wakes", "woken later"])
def test_no_request_is_forgotten_that_comes_as_the_thread_falls_asleep(dispatcher, separately):
    """The thread has just answered and is on its way to sleep when the next request comes, a little later each time."""
    dispatcher.start()
    for turn in range(8_000):
        request = pending()
        for _ in range(turn % 97):
            pass
        dispatcher.submit([request], request.enqueued_at, wake=not separately)
        if separately:
            dispatcher.wake()
        assert request.future.result(30).outputs is ROW
        if turn % 5 == 0:
            assert dispatcher.call(lambda turn=turn: turn).result(30) == turn


@pytest.mark.usefixtures("impatient")
def test_whatever_many_threads_submit_and_withdraw_is_answered_or_theirs(dispatcher, executor):
    dispatcher.start()

    def client(seed):
        chance = Random(seed)
        answered = withdrawn = 0
        for _ in range(150):
            requests = [pending() for _ in range(chance.randint(1, 5))]
            for request in requests:
                dispatcher.submit([request], request.enqueued_at, wake=chance.random() < 0.5)
            dispatcher.wake()
            gone = dispatcher.withdraw(chance.sample(requests, chance.randint(0, len(requests))))
            withdrawn += len(gone)
            for request in requests:
                if request not in gone:
                    assert request.future.result(30).outputs is ROW
                    answered += 1
        return answered, withdrawn

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        totals = list(pool.map(client, range(6)))
    answered, withdrawn = (sum(each) for each in zip(*totals, strict=True))
    assert sum(executor.sizes) == answered
    assert withdrawn > 0
    assert dispatcher.stats().queue_depth == 0


def test_what_comes_while_the_device_is_busy_is_in_the_next_dispatch(dispatcher, executor):
    first, late = pending(), [pending() for _ in range(4)]

    def arrive(dispatch):
        executor.during = lambda dispatch: None
        for request in late:
            dispatcher.submit([request], request.enqueued_at)

    executor.during = arrive
    dispatcher.submit([first], first.enqueued_at)
    dispatcher.start()
    for request in [first, *late]:
        assert request.future.result(30).outputs is ROW
    assert executor.sizes == [1, 4]


@pytest.mark.parametrize("gone", range(4))
@pytest.mark.parametrize("wait_ms", [0.0])
def test_a_waiting_thread_that_gives_up_in_a_running_batch_harms_none_of_the_others(dispatcher, executor, gone):
    requests = [pending() for _ in range(4)]
    executor.during = lambda dispatch: requests[gone].future.cancel()
    dispatcher.submit(requests, requests[0].enqueued_at)
    assert dispatcher.step() == NOW
    assert executor.sizes == [4]
    for index, request in enumerate(requests):
        if index == gone:
            assert request.future.cancelled()
        else:
            assert request.future.result(0).outputs is ROW
    after = pending()
    dispatcher.submit([after], after.enqueued_at)
    dispatcher.step()
    assert after.future.result(0).outputs is ROW


@pytest.mark.usefixtures("impatient")
def test_the_thread_sleeps_while_what_is_queued_may_not_run_yet(executor):
    """One that turned in circles instead would ask for the time again and again while this thread counts."""
    asked = []

    def clock():
        asked.append(threading.get_ident())
        return 100.0

    scheduler: Scheduler[PendingRequest] = Scheduler(SchedulerConfig())
    for name, policy in (("waits", ModelPolicy(max_wait_ms=1e7)), ("loads", ModelPolicy())):
        scheduler.add_model(name, spec(name), policy)
    scheduler.set_weights("loads", "loading")
    dispatcher = Dispatcher(scheduler, executor, clock)
    dispatcher.start()
    for name in ("waits", "loads"):
        dispatcher.submit([pending(name)], 100.0)
    dispatcher.call(lambda: None).result(30)
    before = len(asked)
    for _ in range(1_000_000):
        pass
    assert len(asked) <= before + 5
    assert executor.sizes == []
    dispatcher.stop(30)
