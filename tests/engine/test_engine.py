"""The life of a request, on a fake device."""

import asyncio
import threading
import time
from math import inf

import numpy as np
import pytest

from app.domain.errors import (
    DeadlineExceeded,
    ExecutionFailed,
    HookFailed,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    ShuttingDown,
)
from app.engine.watchdog import Watchdog
from tests.builders import rows_of

pytestmark = pytest.mark.anyio

DOUBLING = """
def preprocess(inputs):
    return {"x": inputs["x"] * 2}

def postprocess(outputs):
    return {"y": outputs["y"] + 1}
"""

PICKY = """
def preprocess(inputs):
    if inputs["x"][0, 0] < 0:
        raise ValueError("x must not be negative")
    if inputs["x"][0, 0] > 100:
        raise RuntimeError("secret detail")
    return dict(inputs)
"""

GROWING = """
import numpy as np

def preprocess(inputs):
    return {"x": np.repeat(inputs["x"], 3, axis=0)}
"""


class Gate:
    """Holds the first execution until it is opened."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, variant, size, inputs):
        self.entered.set()
        assert self.opened.wait(30)

    async def wait_entered(self):
        assert await asyncio.to_thread(self.entered.wait, 30)


async def queued(stage, count):
    """Wait until `count` requests are queued."""
    while stage.dispatcher.stats().queue_depth < count:
        await asyncio.sleep(0)


async def test_the_answer_is_the_models(stage):
    stage.load()
    result = await stage.infer({"x": rows_of(5, 1)})
    np.testing.assert_array_equal(result.outputs["y"], rows_of(5, 1))
    assert (result.batch_rows, result.batch_size) == (1, 1)


async def test_what_is_queued_together_runs_together_and_everyone_gets_their_own_row(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    others = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(1, 5)]
    await queued(stage, 4)
    gate.opened.set()
    results = [await task for task in [first, *others]]
    assert [call.size for call in stage.backend.calls] == [1, 4]
    for row, result in enumerate(results):
        np.testing.assert_array_equal(result.outputs["y"], rows_of(row, 1))


async def test_a_burst_behind_a_running_execution_takes_few_dispatches(stage):
    stage.load(sizes=(1, 2, 4, 8, 16, 32))
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    burst = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(64)]
    await queued(stage, 64)
    gate.opened.set()
    await first
    for row, task in enumerate(burst):
        assert (await task).outputs["y"][0, 0] == row
    assert len(stage.backend.calls) - 1 <= 3


async def test_a_request_above_every_size_is_cut_and_joined_in_order(stage):
    stage.load()
    result = await stage.infer({"x": rows_of(0, 11)})
    np.testing.assert_array_equal(result.outputs["y"], rows_of(0, 11))
    assert [call.size for call in stage.backend.calls] == [4, 4, 4]


async def test_hooks_wrap_the_execution(stage):
    stage.load(hooks=DOUBLING)
    result = await stage.infer({"x": rows_of(3, 2)})
    np.testing.assert_array_equal(result.outputs["y"], rows_of(3, 2) * 2 + 1)


async def test_hooks_wrap_a_cut_request_once(stage):
    stage.load(hooks=DOUBLING)
    result = await stage.infer({"x": rows_of(0, 9)})
    np.testing.assert_array_equal(result.outputs["y"], rows_of(0, 9) * 2 + 1)


async def test_a_request_whose_hook_changes_the_rows_is_not_cut(stage):
    stage.load(hooks=GROWING)
    with pytest.raises(InvalidRequest, match="6 rows are more than the largest compiled batch size 4"):
        await stage.infer({"x": rows_of(0, 2)})
    assert stage.backend.calls == []


@pytest.mark.filterwarnings("error")
async def test_a_failing_hook_fails_only_its_caller(stage):
    stage.load(hooks=PICKY)
    bad, crash, good = await asyncio.gather(
        *[stage.infer({"x": rows_of(row, 1)}) for row in (-5, 500, 5)], return_exceptions=True
    )
    assert isinstance(bad, InvalidRequest)
    assert "x must not be negative" in bad.message
    assert isinstance(crash, HookFailed)
    assert "secret" not in crash.message
    assert not isinstance(good, BaseException)
    np.testing.assert_array_equal(good.outputs["y"], rows_of(5, 1))


async def test_a_failed_execution_fails_its_requests_and_the_next_one_runs(stage):
    stage.load()
    stage.backend.fail_next(ExecutionFailed("boom"))
    with pytest.raises(ExecutionFailed, match="the execution failed"):
        await stage.infer({"x": rows_of(0, 1)})
    assert (await stage.infer({"x": rows_of(1, 1)})).outputs["y"][0, 0] == 1


async def test_an_unexpected_exception_in_the_backend_fails_the_batch_and_not_the_thread(stage):
    stage.load()
    stage.backend.fail_next(RuntimeError("secret detail"))
    with pytest.raises(ExecutionFailed) as caught:
        await stage.infer({"x": rows_of(0, 1)})
    assert "secret" not in caught.value.message
    assert (await stage.infer({"x": rows_of(1, 1)})).outputs["y"][0, 0] == 1
    assert stage.engine.alive


async def test_a_deadline_is_answered_while_the_device_is_busy(stage, put_loop_forward):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    late = asyncio.create_task(stage.infer({"x": rows_of(1, 1)}, deadline=stage.clock() + 60))
    while not stage.dispatcher.stats().queue_depth:
        await asyncio.sleep(0)
    put_loop_forward(60)
    with pytest.raises(DeadlineExceeded):
        await late
    assert stage.dispatcher.stats().queue_depth == 0
    assert not first.done()
    gate.opened.set()
    await first
    assert len(stage.backend.calls) == 1


@pytest.mark.parametrize("gone", range(4))
async def test_a_caller_that_goes_leaves_its_place_and_nobody_else_suffers(stage, gone):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    others = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(1, 5)]
    await queued(stage, 4)
    others[gone].cancel()
    with pytest.raises(asyncio.CancelledError):
        await others[gone]
    assert stage.dispatcher.stats().queue_depth == 3
    gate.opened.set()
    await first
    for row, task in enumerate(others, 1):
        if row != gone + 1:
            assert (await task).outputs["y"][0, 0] == row
    assert sum(call.rows for call in stage.backend.calls) == 1 + 3


@pytest.mark.parametrize("gone", range(4))
async def test_a_caller_that_goes_during_the_execution_does_not_stop_it(stage, gone):
    stage.load()
    hold = Gate()
    stage.backend.on_run = hold
    warm = asyncio.create_task(stage.infer({"x": rows_of(9, 1)}))
    await hold.wait_entered()
    tasks = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(4)]
    await queued(stage, 4)
    gate = stage.backend.on_run = Gate()
    hold.opened.set()
    await gate.wait_entered()
    tasks[gone].cancel()
    gate.opened.set()
    await warm
    for row, task in enumerate(tasks):
        if row == gone:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert (await task).outputs["y"][0, 0] == row


async def test_a_cut_request_that_goes_takes_all_its_pieces_along(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    large = asyncio.create_task(stage.infer({"x": rows_of(1, 12)}))
    await queued(stage, 3)
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert stage.dispatcher.stats().queue_depth == 0
    gate.opened.set()
    await first


async def test_one_failed_piece_fails_the_request_once_and_withdraws_the_others(stage):
    stage.load()
    failed = threading.Event()

    def second_fails(variant, size, inputs):
        if len(stage.backend.calls) == 2:
            raise ExecutionFailed("boom")
        if len(stage.backend.calls) == 3:
            assert failed.wait(30)

    stage.backend.on_run = second_fails
    with pytest.raises(ExecutionFailed, match="the execution failed"):
        await stage.infer({"x": rows_of(0, 40)})
    failed.set()
    assert stage.dispatcher.stats().queue_depth == 0
    await asyncio.wrap_future(stage.dispatcher.call(lambda: None))
    assert len(stage.backend.calls) <= 3


async def test_a_full_queue_refuses_all_pieces_of_a_request(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    depth = stage.config.max_queue_depth
    waiting = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(depth - 1)]
    await queued(stage, depth - 1)
    with pytest.raises(QueueFull):
        await stage.infer({"x": rows_of(0, 8)})
    assert stage.dispatcher.stats().queue_depth == depth - 1
    with pytest.raises(InvalidRequest) as caught:
        await stage.infer({"x": rows_of(0, 4 * depth + 1)})
    assert caught.value.code == "too_many_rows"
    gate.opened.set()
    await asyncio.gather(first, *waiting)


async def test_rows_that_disagree_and_no_rows_are_refused_before_the_queue(stage):
    stage.load()
    with pytest.raises(InvalidRequest) as caught:
        await stage.infer({"x": rows_of(0, 0)})
    assert caught.value.code == "empty_batch"
    assert stage.backend.calls == []


async def test_an_unloaded_model_answers_what_is_queued_and_is_unknown_after(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    second = asyncio.create_task(stage.infer({"x": rows_of(1, 1)}))
    await queued(stage, 1)
    unload = stage.control.remove_model("m")
    gate.opened.set()
    assert (await first).outputs["y"][0, 0] == 0
    await asyncio.wrap_future(unload)
    outcome = (await asyncio.gather(second, return_exceptions=True))[0]
    # The second was taken with or after the first, or it was still queued: then it says why.
    if isinstance(outcome, Exception):
        assert isinstance(outcome, ModelNotFound)
        assert "was unloaded" in outcome.message
    with pytest.raises(ModelNotFound):
        stage.engine.resolve("m", None)


async def test_a_reload_lets_requests_finish_on_the_generation_they_began_with(stage):
    old = stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    stage.control.on_retired = stage.engine.leases.retire
    path = stage.root / "m"
    (path / "hooks.py").write_text(DOUBLING)
    gate.opened.set()
    load = stage.control.load_model("m", path)
    assert (await first).outputs["y"][0, 0] == 0
    await asyncio.wrap_future(load)
    assert (await stage.infer({"x": rows_of(3, 1)})).outputs["y"][0, 0] == 7
    new = stage.engine.resolve("m", None)
    assert new.model_id != old.model_id
    assert new.account is old.account
    assert new.account.ok == 2


async def test_a_generation_in_use_stays_on_the_device_until_its_last_request_ends(stage):
    old = stage.load()
    stage.control.on_retired = stage.engine.leases.retire
    stage.engine.begin(old, inf, 0.0)
    await asyncio.wrap_future(stage.control.load_model("m", stage.root / "m"))
    await asyncio.wrap_future(stage.dispatcher.call(lambda: None))
    assert len(stage.backend.loaded) == 2
    stage.engine.end(old, None, 0.0)
    await asyncio.wrap_future(stage.dispatcher.call(lambda: None))
    assert [model.unloaded for model in stage.backend.loaded] == [False]


async def test_accepted_requests_are_all_accounted_for(stage):
    stage.load(hooks=PICKY)
    account = stage.registry.resolve("m").account
    outcomes = await asyncio.gather(
        *[stage.infer({"x": rows_of(row, 1)}) for row in (-1, 1, 2, 500)],
        stage.infer({"x": rows_of(1, 1)}, deadline=time.monotonic() - 1),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 3
    assert (account.accepted, account.ok, account.failed, account.dropped, account.in_flight) == (5, 2, 2, 1, 0)


async def test_a_refusing_engine_finishes_what_it_has_and_takes_nothing_new(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 9)}))
    await gate.wait_entered()
    stage.engine.refuse()
    with pytest.raises(ShuttingDown):
        await stage.infer({"x": rows_of(0, 1)})
    assert not await stage.engine.idle(0)
    gate.opened.set()
    assert await stage.engine.idle(30)
    assert (await first).outputs["y"].shape == (9, 3)


STUCK = """
def preprocess(inputs, context):
    if "opened" in context.parameters:
        context.parameters["opened"].wait(30)
    return dict(inputs)
"""


async def test_giving_up_answers_what_runs_what_waits_and_what_is_in_a_hook(stage):
    stage.load(hooks=STUCK)
    gate = stage.backend.on_run = Gate()
    running = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    waiting = asyncio.create_task(stage.infer({"x": rows_of(1, 9)}))
    await queued(stage, 3)
    hooked = asyncio.create_task(stage.infer({"x": rows_of(2, 1)}, parameters={"opened": gate.opened}))
    await asyncio.sleep(0)
    stage.engine.give_up()
    for task in (running, waiting, hooked):
        with pytest.raises(ShuttingDown):
            await task
    assert await stage.engine.idle(30)
    gate.opened.set()
    await asyncio.wrap_future(stage.dispatcher.call(lambda: None))
    assert stage.engine.alive


async def test_two_changes_of_a_policy_at_once_are_both_kept(stage):
    stage.load()
    changes = [{"weight": 3.0}, {"max_wait_ms": 7.0}, {"max_batch_size": 2}]
    await asyncio.gather(
        *[stage.engine.set_policy("m", lambda policy, c=change: policy.model_copy(update=c)) for change in changes]
    )
    policy = stage.registry.resolve("m").policy
    assert (policy.weight, policy.max_wait_ms, policy.max_batch_size) == (3.0, 7.0, 2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "returned NoneType, not a dict"),
        ("return [1]", "returned list, not a dict"),
        ("return {'x': [[1, 2, 3]]}", "returned a list for tensor 'x'"),
        ("return {}", "returned nothing for tensor 'x'"),
        ("return {'x': inputs['x'].astype('f8')}", r"returned float64 \[1, 3\] for tensor 'x'"),
        ("return {'x': inputs['x'][:, :2]}", r"returned float32 \[1, 2\] for tensor 'x'"),
        ("raise SystemExit(3)", "failed"),
        ("raise KeyError('secret')", "failed"),
    ],
)
async def test_whatever_a_hook_does_wrong_is_told_by_name(stage, body, said):
    stage.load(hooks=f"def preprocess(inputs):\n    {body}\n")
    with pytest.raises(HookFailed, match=said) as caught:
        await stage.infer({"x": rows_of(0, 1)})
    assert "secret" not in caught.value.message


async def test_what_a_hook_returns_beside_the_declared_tensors_is_left_out(stage):
    stage.load(hooks="def postprocess(outputs):\n    return {**outputs, 'more': outputs['y']}\n")
    assert list((await stage.infer({"x": rows_of(0, 1)})).outputs) == ["y"]


async def test_an_execution_whose_callers_are_all_gone_is_ended(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    stage.backend.on_terminate = gate.opened.set
    first, second = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(2)]
    await gate.wait_entered()
    while stage.dispatcher.stats().queue_depth:
        await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    for task in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert gate.opened.is_set()
    stage.backend.on_run = None
    assert (await stage.infer({"x": rows_of(7, 1)})).outputs["y"][0, 0] == 7


async def test_an_execution_goes_on_while_one_caller_still_waits(stage):
    stage.load(sizes=(2,))
    hold, gate, ended = Gate(), Gate(), []
    stage.backend.on_run, stage.backend.on_terminate = hold, lambda: ended.append(True)
    warm = asyncio.create_task(stage.infer({"x": rows_of(9, 1)}))
    await hold.wait_entered()
    stays, goes = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(2)]
    await queued(stage, 2)
    stage.backend.on_run = gate
    hold.opened.set()
    await warm
    await gate.wait_entered()
    goes.cancel()
    with pytest.raises(asyncio.CancelledError):
        await goes
    assert ended == []
    gate.opened.set()
    assert (await stays).outputs["y"][0, 0] == 0


async def test_an_execution_that_takes_too_long_is_ended_and_its_callers_told(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    stage.backend.on_terminate = gate.opened.set
    late = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    assert not stage.dispatcher.end_overdue(1000.0)
    assert not gate.opened.is_set()
    assert stage.dispatcher.end_overdue(0.0)  # as long again has passed, too
    with pytest.raises(DeadlineExceeded) as caught:
        await late
    assert caught.value.code == "dispatch_timeout"
    await asyncio.wrap_future(stage.dispatcher.call(lambda: None))
    assert not stage.dispatcher.end_overdue(0.0)
    stage.backend.on_run = None
    assert (await stage.infer({"x": rows_of(7, 1)})).outputs["y"][0, 0] == 7


async def test_callers_hear_that_the_time_was_up_and_not_of_the_end_that_it_makes(stage):
    """They are told first: an execution that is ended fails, and whoever is told of that first hears nothing else."""
    stage.load()
    gate = stage.backend.on_run = Gate()
    late = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    [running], never = stage.dispatcher._running, threading.Event()
    told = []

    def end():
        told.append(any(running.future.done() or never.wait(0.01) for _ in range(500)))
        gate.opened.set()

    stage.backend.on_terminate = end
    await asyncio.to_thread(stage.dispatcher.end_overdue, 0.0)
    with pytest.raises(DeadlineExceeded):
        await late
    assert told
    assert all(told)


async def test_the_process_is_not_alive_while_an_execution_cannot_be_ended(stage):
    stage.load()
    gate = stage.backend.on_run = Gate()
    stuck = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await gate.wait_entered()
    watchdog = Watchdog(stage.dispatcher, 0.02)
    stage.engine.watchdog = watchdog
    watchdog.start()
    with pytest.raises(DeadlineExceeded):
        await stuck
    while stage.engine.alive:
        await asyncio.sleep(0)
    gate.opened.set()
    while not stage.engine.alive:
        await asyncio.sleep(0)
    watchdog.stop()
