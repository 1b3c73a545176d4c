"""Many callers at once, on a fake device: those who leave, those who are late, and what may share a dispatch."""

import asyncio
from random import Random

import numpy as np
import pytest
from onnx import TensorProto, helper

from app.domain.errors import DeadlineExceeded
from tests.builders import rows_of

pytestmark = pytest.mark.anyio


async def queued(stage, number):
    while stage.dispatcher.stats().queue_depth < number:
        await asyncio.sleep(0)


async def entered(hold):
    assert await asyncio.to_thread(hold.entered.wait, 30)


def nothing_is_left(stage, name="m"):
    stage.settle()
    assert stage.engine.leases.total == 0
    assert stage.registry.resolve(name).account.in_flight == 0
    assert stage.dispatcher.stats().queue_depth == 0
    assert stage.engine.alive


@pytest.mark.parametrize("seed", range(3))
async def test_of_a_thousand_callers_those_who_stay_are_answered_whoever_leaves_and_when(stage, seed):
    stage.load(sizes=(1, 2, 4, 8))
    chance = Random(seed)
    hold = stage.hold_run()
    callers = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(1000)]
    await entered(hold)
    gone = set()
    for turn in range(400):
        if turn == 100:
            hold.open()
        if turn >= 100 and turn % 3 == 0:
            await asyncio.sleep(0)
        leaver = chance.randrange(1000)
        if callers[leaver].cancel():
            gone.add(leaver)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
    for row, outcome in enumerate(outcomes):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, asyncio.CancelledError)
            assert row in gone
        else:
            assert row not in gone
            assert outcome.outputs["y"].tolist() == [[row] * 3]
    assert len(gone) > 50
    nothing_is_left(stage)
    account = stage.registry.resolve("m").account
    assert (account.ok, account.dropped) == (1000 - len(gone), len(gone))


async def test_all_whose_time_is_up_are_answered_while_the_device_is_busy_and_the_others_run(stage, put_loop_forward):
    stage.load(sizes=(1, 2, 4, 8))
    hold = stage.hold_run()
    running = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}))
    await entered(hold)
    deadline = stage.clock() + 60
    late = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)}, deadline=deadline)) for row in range(300)]
    patient = [asyncio.create_task(stage.infer({"x": rows_of(row, 1)})) for row in range(300)]
    await queued(stage, 600)
    put_loop_forward(60)
    outcomes = await asyncio.gather(*late, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {DeadlineExceeded}
    assert not running.done()
    assert stage.dispatcher.stats().queue_depth == 300
    hold.open()
    for row, task in enumerate([running, *patient]):
        assert (await task).outputs["y"][0, 0] == max(row - 1, 0)
    assert sum(call.rows for call in stage.backend.calls) == 1 + 300
    nothing_is_left(stage)


def write_bundle(path, inputs, outputs):
    """A bundle of these tensors by (name, shape); the fake device does not look inside."""
    path.mkdir()
    takes, gives = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in group]
        for group in (inputs, outputs)
    ]
    nodes = [helper.make_node("Identity", [inputs[0][0]], [name]) for name, _ in outputs]
    graph = helper.make_graph(nodes, "any", takes, gives)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path / "model.onnx").write_bytes(model.SerializeToString())


async def test_callers_with_different_values_for_an_input_without_a_batch_never_share_a_dispatch(stage):
    write_bundle(stage.root / "m", [("x", ["n", 3]), ("scale", [1])], [("y", ["n", 1])])
    stage.control.load_model("m", stage.root / "m").result(30)
    seen = []

    def look(variant, size, inputs):
        seen.append((inputs["x"][:, 0].tolist(), inputs["scale"].tolist()))

    hold = stage.hold_run()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1), "scale": np.ones(1, np.float32)}))
    await entered(hold)
    scales = [5, 5, 6, 6, 5, 7]
    tasks = [
        asyncio.create_task(stage.infer({"x": rows_of(row, 1), "scale": np.full(1, scale, np.float32)}))
        for row, scale in enumerate(scales, 1)
    ]
    await queued(stage, len(scales))
    stage.backend.on_run = look
    hold.open()
    await first
    for row, (task, scale) in enumerate(zip(tasks, scales, strict=True), 1):
        assert (await task).outputs["y"].tolist() == [[3.0 * row + scale]]
    assert seen == [([1, 2], [5]), ([3, 4], [6]), ([5], [5]), ([6], [7])]


async def test_a_large_request_to_a_model_whose_output_has_no_batch_axis_runs_whole(stage):
    write_bundle(stage.root / "m", [("x", ["n", 3])], [("total", [1])])
    stage.control.load_model("m", stage.root / "m").result(30)
    stage.backend.calls.clear()
    hold = stage.hold_run()
    tasks = [asyncio.create_task(stage.infer({"x": rows_of(1, rows)})) for rows in (1, 500, 2)]
    await entered(hold)
    hold.open()
    totals = [(await task).outputs["total"].tolist() for task in tasks]
    assert totals == [[3 * sum(range(1, rows + 1))] for rows in (1, 500, 2)]
    assert [(call.size, call.rows) for call in stage.backend.calls] == [(1, 1), (500, 500), (2, 2)]


async def test_a_burst_as_deep_as_the_queue_is_answered_whole(stage):
    stage.load(sizes=(1, 2, 4, 8, 16, 32))
    depth = stage.config.max_queue_depth
    results = await asyncio.gather(*[stage.infer({"x": rows_of(row, 1)}) for row in range(depth)])
    assert [result.outputs["y"][0, 0] for result in results] == list(range(depth))
    assert len(stage.backend.calls) < depth / 8
    nothing_is_left(stage)
