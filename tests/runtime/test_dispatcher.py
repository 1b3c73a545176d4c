"""One turn at a time, and the thread that takes the turns."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from math import inf

import pytest

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import (
    DeadlineExceeded,
    ExecutionFailed,
    OutOfMemory,
    QueueFull,
    ServingError,
    ShuttingDown,
)
from app.domain.model import MergeKey
from app.runtime.dispatcher import NOW, Dispatcher
from app.runtime.executor import Outcome
from app.runtime.pending import DispatchFacts, Part, PendingRequest, fail
from app.scheduling.scheduler import Scheduler
from tests.builders import rows_of, spec


class Echo:
    """An executor that answers each request with its own inputs; `error_of` may name an error for a dispatch."""

    def __init__(self):
        self.dispatches = []
        self.error_of: Callable[[object], ServingError | None] = lambda dispatch: None

    def execute(self, dispatch):
        self.dispatches.append(dispatch)
        error = self.error_of(dispatch)
        facts = DispatchFacts(0.0, 0.0, 0.001, dispatch.rows, dispatch.size)
        parts = None if error else [Part(request.inputs, facts) for request in dispatch.requests]
        return Outcome(parts, 0.001, error, 0.0, 0.001)


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def executor():
    return Echo()


@pytest.fixture
def dispatcher(now, executor):
    scheduler: Scheduler[PendingRequest] = Scheduler(
        SchedulerConfig(discipline="fifo", sizing="fill", max_queue_depth=8)
    )
    scheduler.add_model("m", spec(), ModelPolicy())
    return Dispatcher(scheduler, executor, lambda: now[0])


def pending(row=0, rows=1, deadline=inf):
    return PendingRequest(
        "m", MergeKey("default"), rows, 100.0, deadline, {"x": rows_of(row, rows)}, concurrent.futures.Future()
    )


def test_a_turn_without_work_waits_for_an_arrival(dispatcher):
    assert dispatcher.step() == inf


def test_requests_wait_for_one_execution_that_a_command_makes_and_not_for_the_next(dispatcher, executor):
    ran: list[object] = []
    executor.error_of = lambda dispatch: ran.append(dispatch.rows)
    dispatcher.submit([pending(rows=4), pending(rows=4), pending(rows=3)], 100.0)
    for each in "abcd":
        dispatcher.call(lambda each=each: ran.append(each), executes=True)
    dispatcher.call(lambda: ran.append("x"))
    dispatcher.call(lambda: ran.append("y"))
    while dispatcher.step() == NOW:
        pass
    assert ran == ["x", "y", "a", 4, "b", 4, "c", 3, "d"]


def test_executions_of_commands_follow_one_another_where_nobody_waits(dispatcher):
    executions = [dispatcher.call(lambda each=each: each, executes=True) for each in range(3)]
    dispatcher.start()
    assert [execution.result(30) for execution in executions] == [0, 1, 2]
    dispatcher.stop(30)


def test_one_turn_runs_one_dispatch_and_answers_it(dispatcher, executor):
    requests = [pending(row) for row in range(3)]
    dispatcher.submit(requests, 100.0)
    assert dispatcher.step() == NOW
    assert [request.future.result(0).outputs for request in requests[:2]] == [
        request.inputs for request in requests[:2]
    ]
    assert dispatcher.step() == NOW
    assert dispatcher.step() == inf
    assert sum(dispatch.rows for dispatch in executor.dispatches) == 3
    assert dispatcher.stats().models["m"].requests == 3


def test_commands_come_before_the_next_dispatch_and_in_order(dispatcher, executor):
    seen = []
    dispatcher.submit([pending()], 100.0)
    calls = [dispatcher.call(lambda mark=mark: seen.append((mark, len(executor.dispatches)))) for mark in "ab"]
    dispatcher.step()
    assert seen == [("a", 0), ("b", 0)]
    assert all(call.done() for call in calls)
    dispatcher.step()
    assert len(executor.dispatches) == 1


def test_a_failing_command_fails_its_caller_alone(dispatcher):
    def fail():
        raise KeyError("culprit")

    broken, sound = dispatcher.call(fail), dispatcher.call(lambda: 7)
    dispatcher.step()
    with pytest.raises(KeyError, match="culprit"):
        broken.result(0)
    assert sound.result(0) == 7


def test_no_failure_of_a_command_stops_the_commands_behind_it(dispatcher):
    def leave():
        raise SystemExit(3)

    broken, sound = dispatcher.call(leave), dispatcher.call(lambda: 7)
    dispatcher.step()
    with pytest.raises(SystemExit):
        broken.result(0)
    assert sound.result(0) == 7


def test_a_dispatch_is_counted_before_anyone_has_its_answer(dispatcher):
    request = pending()
    counted = []
    request.future.add_done_callback(lambda _: counted.append(dispatcher.stats().models["m"].requests))
    dispatcher.submit([request], 100.0)
    dispatcher.step()
    assert counted == [1]


def test_a_failed_batch_is_run_again_in_halves_until_the_culprit_stands_alone(dispatcher, executor):
    requests = [pending(row) for row in range(4)]
    culprit = requests[2]
    executor.error_of = lambda dispatch: ExecutionFailed("bad row") if culprit in dispatch.requests else None
    with dispatcher.locked() as scheduler:
        for size in (1, 2, 4):
            scheduler.seed_cost("m", "default", size, 1.0, 100.0)
    dispatcher.submit(requests, 100.0)
    while dispatcher.step() == NOW:
        pass
    for request in requests:
        if request is culprit:
            with pytest.raises(ExecutionFailed, match="bad row"):
                request.future.result(0)
        else:
            assert request.future.result(0).outputs is request.inputs
    assert [len(dispatch.requests) for dispatch in executor.dispatches] == [4, 2, 2, 1, 1]


@pytest.mark.parametrize("error", [OutOfMemory("full"), ExecutionFailed("slow", reason="terminated")])
def test_a_batch_that_failed_for_no_fault_of_its_requests_is_not_run_again(dispatcher, executor, error):
    requests = [pending(row) for row in range(4)]
    executor.error_of = lambda dispatch: error
    dispatcher.submit(requests, 100.0)
    while dispatcher.step() == NOW:
        pass
    assert len(executor.dispatches) == 1
    errors = [request.future.exception(0) for request in requests]
    assert [(type(each), each.message, each.code) for each in errors] == [(type(error), error.message, error.code)] * 4
    assert len({id(each) for each in [*errors, error]}) == 5


def test_what_edf_gives_up_in_time_is_told_apart_from_what_came_too_late(executor, now):
    scheduler: Scheduler[PendingRequest] = Scheduler(SchedulerConfig(discipline="edf", admission="off"))
    scheduler.add_model("m", spec(), ModelPolicy())
    for size in (1, 2, 4):
        scheduler.seed_cost("m", "default", size, 5.0, 100.0)
    dispatcher = Dispatcher(scheduler, executor, lambda: now[0])
    hopeless = pending(deadline=101.0)
    dispatcher.submit([hopeless], 100.0)
    dispatcher.step()
    error = hopeless.future.exception(0)
    assert isinstance(error, DeadlineExceeded)
    assert error.code == "infeasible_dispatch"
    assert error.message == (
        "model 'm' could not answer by the deadline: after 0.0 ms in the queue 1000.0 ms were left for its execution, "
        "which may take longer"
    )
    assert executor.dispatches == []


def test_a_caller_that_gave_up_is_left_alone():
    request = pending()
    request.future.cancel()
    fail([request], ShuttingDown("over"))
    assert request.future.cancelled()


def test_an_expired_request_is_answered_and_never_run(dispatcher, executor, now):
    late, fine = pending(deadline=101.0), pending(1)
    dispatcher.submit([late], 100.0)
    dispatcher.submit([fine], 100.0)
    now[0] = 101.0
    dispatcher.step()
    with pytest.raises(DeadlineExceeded, match=r"while the request was queued for model 'm', for 1000\.0 ms"):
        late.future.result(0)
    assert [dispatch.requests for dispatch in executor.dispatches] == [(fine,)]


def test_what_was_withdrawn_is_not_run(dispatcher, executor):
    gone, stays = pending(0), pending(1)
    dispatcher.submit([gone, stays], 100.0)
    assert dispatcher.withdraw([gone]) == (gone,)
    assert dispatcher.withdraw([gone]) == ()
    dispatcher.step()
    assert executor.dispatches[0].requests == (stays,)
    assert dispatcher.withdraw([stays]) == ()


def test_a_full_queue_takes_none(dispatcher):
    dispatcher.submit([pending() for _ in range(7)], 100.0)
    with pytest.raises(QueueFull):
        dispatcher.submit([pending(), pending()], 100.0)
    assert dispatcher.stats().queue_depth == 7


def test_stopping_fails_what_is_queued_and_takes_no_more(dispatcher):
    request = pending()
    dispatcher.submit([request], 100.0)
    command = dispatcher.call(lambda: "done")
    dispatcher.stop(0)
    with pytest.raises(ShuttingDown):
        request.future.result(0)
    assert command.result(0) == "done"
    with pytest.raises(ShuttingDown):
        dispatcher.submit([pending()], 100.0)
    with pytest.raises(ShuttingDown):
        dispatcher.call(lambda: None).result(0)


def test_the_thread_serves_until_it_is_stopped(dispatcher):
    dispatcher.start()
    for row in range(200):  # a lost wake-up would hang one of these
        request = pending(row)
        dispatcher.submit([request], 100.0)
        assert request.future.result(30).outputs["x"][0, 0] == row
    assert dispatcher.call(threading.current_thread).result(30).name == "dispatcher"
    dispatcher.stop(30)


def test_submissions_without_a_wake_share_one(dispatcher, executor):
    dispatcher.start()
    dispatcher.call(lambda: None).result(30)
    requests = [pending(row) for row in range(4)]
    for request in requests:
        dispatcher.submit([request], 100.0, wake=False)
    dispatcher.wake()
    for request in requests:
        request.future.result(30)
    dispatcher.stop(30)


def test_a_broken_loop_makes_the_dispatcher_not_alive_and_leaves_nobody_waiting(now):
    class Broken:
        def execute(self, dispatch):
            raise MemoryError("unexpected")

        def terminate(self):
            raise AssertionError("nothing to end")

    scheduler: Scheduler[PendingRequest] = Scheduler(SchedulerConfig())
    scheduler.add_model("m", spec(), ModelPolicy())
    dispatcher = Dispatcher(scheduler, Broken(), lambda: now[0])
    taken, left = pending(), pending(rows=4)
    dispatcher.submit([taken], 100.0)
    dispatcher.submit([left], 100.0)
    dispatcher.start()
    with pytest.raises(ServingError, match="died"):
        left.future.result(30)
    with pytest.raises(ServingError, match="died"):
        taken.future.result(30)
    assert not dispatcher.alive
    with pytest.raises(ShuttingDown):
        dispatcher.submit([pending()], 100.0)
    dispatcher.stop(30)


def test_a_lost_device_is_told_to_whoever_waits_and_ends_the_dispatcher(dispatcher, executor):
    executor.error_of = lambda dispatch: ExecutionFailed("CUDA error 700", reason="device_lost")
    taken, left = pending(), pending(rows=4)
    dispatcher.submit([taken], 100.0)
    dispatcher.submit([left], 100.0)
    dispatcher.start()
    with pytest.raises(ExecutionFailed) as lost:
        taken.future.result(30)
    assert lost.value.code == "device_lost"
    with pytest.raises(ServingError, match="must be restarted"):
        left.future.result(30)
    assert not dispatcher.alive
    dispatcher.stop(30)


@pytest.mark.anyio
async def test_the_results_of_one_dispatch_wake_the_loop_once(dispatcher, executor, monkeypatch):
    loop = asyncio.get_running_loop()
    wakes = []
    original = loop.call_soon_threadsafe

    def counted(*args):
        wakes.append(args)
        return original(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    requests = [pending(row) for row in range(4)]
    for request in requests:
        request.future = loop.create_future()
    dispatcher.submit(requests, 100.0)
    dispatcher.step()
    results = [await request.future for request in requests]
    assert [result.outputs["x"][0, 0] for result in results] == [0, 1, 2, 3]
    assert len(wakes) == 1


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_a_failed_batch_that_nobody_waits_for_any_more_leaves_nothing_behind(dispatcher, executor):
    requests = [pending(row) for row in range(4)]

    def all_go(dispatch):
        for request in requests:
            request.future.cancel()
        return ExecutionFailed("bad row")

    executor.error_of = all_go
    dispatcher.submit(requests, 100.0)
    assert dispatcher.step() == NOW
    assert dispatcher.step() == inf
    executor.error_of = lambda dispatch: None
    after = pending(9)
    dispatcher.submit([after], 100.0)
    dispatcher.step()
    assert after.future.result(0).outputs is after.inputs


@pytest.mark.parametrize(
    "error", [ExecutionFailed("x", reason="terminated"), OutOfMemory("x"), ExecutionFailed("bad row"), None]
)
def test_device_time_is_charged_however_the_execution_ended(dispatcher, executor, error):
    executor.error_of = lambda dispatch: error
    dispatcher.submit([pending()], 100.0)
    dispatcher.step()
    assert dispatcher.stats().models["m"].recent_seconds == pytest.approx(0.001)


def test_a_threads_future_that_was_given_up_is_not_settled_again(dispatcher, executor):
    request = pending()
    dispatcher.submit([request], 100.0)
    executor.error_of = lambda dispatch: dispatcher.give_up(ShuttingDown("over"))
    dispatcher.step()
    with pytest.raises(ShuttingDown):
        request.future.result(0)
