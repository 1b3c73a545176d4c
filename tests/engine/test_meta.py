"""Meta models: Python between models, one unit to clients, ordinary work to the device."""

import asyncio
import logging

import numpy as np
import pytest

from app.domain.config import Residency
from app.domain.errors import (
    BundleError,
    DeadlineExceeded,
    ExecutionFailed,
    HookFailed,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
    Unsupported,
)
from app.engine.readiness import Readiness
from app.engine.request import InferRequest
from tests.builders import rows_of

pytestmark = pytest.mark.anyio

TENSORS = """
client_inputs: [{name: x, dtype: FP32, shape: nc, dims: {c: 3}}]
client_outputs: [{name: y, dtype: FP32, shape: nc, dims: {c: 3}}]
"""

#: Twice through `a`, then through `b`, and one more each time.
CHAIN = """
def run(inputs, call):
    x = inputs["x"]
    for name in ("a", "a", "b"):
        x = call(name, {"x": x})["y"] + 1
    return {"y": x}
"""


def write_meta(root, name, calls, hooks, tensors=TENSORS, manifest=""):
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.yaml").write_text(
        f'format_version: "1"\nkind: meta\ncalls: [{", ".join(calls)}]\n{tensors}{manifest}'
    )
    (path / "hooks.py").write_text(hooks)
    return path


@pytest.fixture
def load_meta(stage):
    def load(hooks=CHAIN, calls=("a", "b"), name="meta", **options):
        path = write_meta(stage.root, name, calls, hooks, **options)
        stage.control.load_model(name, path).result(30)
        stage.backend.calls.clear()
        return stage.registry.resolve(name)

    return load


async def ask(stage, row=0, rows=1, name="meta", **fields):
    return await stage.infer({"x": rows_of(row, rows)}, name, **fields)


def models_run(stage):
    return [(call.model, call.rows) for call in stage.backend.calls]


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_a_meta_model_runs_its_models_and_answers(stage, load_meta):
    stage.load("a")
    stage.load("b")
    load_meta()
    result = await ask(stage, 5, 2)
    np.testing.assert_array_equal(result.outputs["y"], rows_of(8, 2))
    assert models_run(stage) == [("a", 2), ("a", 2), ("b", 2)]
    assert (result.batch_rows, result.batch_size) == (2, 2)
    assert result.timings.compute > 0


async def test_tensors_go_by_reference_and_are_not_copied(stage, load_meta):
    stage.load("a")
    load_meta(
        """
def run(inputs, call):
    out = call("a", {"x": inputs["x"]})
    assert out["y"] is not inputs["x"]
    return {"y": out["y"]}
""",
        ["a"],
    )
    np.testing.assert_array_equal((await ask(stage, 3)).outputs["y"], rows_of(3, 1))


async def test_the_hooks_of_a_sub_model_run_on_the_thread_of_the_meta_model(stage, load_meta):
    stage.load(
        "a",
        hooks="""
import threading
def preprocess(inputs):
    assert threading.current_thread().name.startswith("meta_")
    return {"x": inputs["x"] * 10}
def postprocess(outputs):
    assert threading.current_thread().name.startswith("meta_")
    return {"y": outputs["y"] + 1}
""",
    )
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    np.testing.assert_array_equal((await ask(stage, 2)).outputs["y"], rows_of(21, 1))


async def test_rows_above_the_largest_size_are_split(stage, load_meta):
    stage.load("a", sizes=(1, 2, 4))
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    np.testing.assert_array_equal((await ask(stage, 0, 11)).outputs["y"], rows_of(0, 11))
    assert models_run(stage) == [("a", 4), ("a", 4), ("a", 4)]


async def test_sub_calls_of_different_meta_models_share_executions(stage, load_meta):
    stage.load("a", sizes=(1, 2, 4))
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    hold = stage.hold_run()
    first = stage.ask(9, name="a")
    await asyncio.to_thread(hold.wait_entered)
    both = [asyncio.ensure_future(ask(stage, row)) for row in (1, 2)]
    ordinary = stage.ask(3, rows=2, name="a")
    await until(lambda: stage.dispatcher.stats().queue_depth == 3)
    hold.open()
    answers = [result.outputs["y"][0, 0] for result in await asyncio.gather(*both)]
    assert answers == [1.0, 2.0]
    assert (first.result(30).outputs["y"][0, 0], ordinary.result(30).outputs["y"][0, 0]) == (9.0, 3.0)
    assert models_run(stage) == [("a", 1), ("a", 4)]


async def test_continuations_are_served_before_the_discipline_chooses(stage, load_meta):
    """The first stage stands in line behind what came before it; the second does not."""
    for name in ("a", "b", "other"):
        stage.load(name, sizes=(1,))
    load_meta("def run(inputs, call):\n    return call('b', call('a', inputs) and inputs)\n", ["a", "b"])
    hold = stage.hold_run()
    stage.ask(0, name="other")
    await asyncio.to_thread(hold.wait_entered)
    before = [stage.ask(row, name="other") for row in range(3)]
    meta = asyncio.ensure_future(ask(stage, 1))
    await until(lambda: stage.dispatcher.stats().queue_depth == 4)
    after = [stage.ask(row, name="other") for row in range(40)]

    def until_the_continuation_is_queued(*_):
        if len(stage.backend.calls) == 6:
            while not stage.stats("b").queue_depth:
                pass

    stage.backend.on_run = until_the_continuation_is_queued
    hold.open()
    await meta
    for future in (*before, *after):
        future.result(30)
    order = [call.model for call in stage.backend.calls]
    assert order == ["other"] * 4 + ["a", "other", "b"] + ["other"] * 39


async def test_as_many_run_at_once_as_the_gate_lets_in_first_come_first_served(stage, load_meta):
    """The stage lets two in."""
    stage.load("a", sizes=(1,))
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    hold = stage.hold_run()
    tasks = [asyncio.ensure_future(ask(stage, row)) for row in range(5)]
    await asyncio.to_thread(hold.wait_entered)
    await until(lambda: stage.dispatcher.stats().queue_depth == 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert stage.dispatcher.stats().queue_depth == 1
    hold.open()
    assert [result.outputs["y"][0, 0] for result in await asyncio.gather(*tasks)] == [0.0, 1.0, 2.0, 3.0, 4.0]


async def test_one_that_expires_in_line_never_begins(stage, load_meta, put_loop_forward):
    stage.load("a", sizes=(1,))
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    hold = stage.hold_run()
    tasks = [asyncio.ensure_future(ask(stage, row)) for row in range(2)]
    await asyncio.to_thread(hold.wait_entered)
    await until(lambda: stage.dispatcher.stats().queue_depth == 1)
    late = asyncio.ensure_future(ask(stage, 7, deadline=stage.clock() + 60))
    await until(lambda: stage.registry.resolve("meta").account.in_flight == 3)
    put_loop_forward(60)
    with pytest.raises(DeadlineExceeded):
        await late
    hold.open()
    await asyncio.gather(*tasks)
    assert len(stage.backend.calls) == 2


async def test_a_caller_that_goes_stops_the_run_at_its_next_stage_and_frees_its_place(stage, load_meta):
    stage.load("a", sizes=(1,))
    stage.load("b", sizes=(1,))
    load_meta()
    for _ in range(4):
        hold = stage.hold_run()
        task = asyncio.ensure_future(ask(stage, 1))
        await asyncio.to_thread(hold.wait_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.open()
    np.testing.assert_array_equal((await ask(stage, 1)).outputs["y"], rows_of(4, 1))
    assert models_run(stage) == [("a", 1)] * 4 + [("a", 1), ("a", 1), ("b", 1)]
    assert (stage.engine.leases.total, stage.dispatcher.stats().queue_depth) == (0, 0)


async def test_a_deadline_that_passes_withdraws_the_sub_call_that_waits(stage, load_meta, put_loop_forward):
    stage.load("a", sizes=(1,))
    stage.load("b", sizes=(1,))
    load_meta()
    hold = stage.hold_run()
    stage.ask(0, name="b")
    await asyncio.to_thread(hold.wait_entered)
    late = asyncio.ensure_future(ask(stage, 1, deadline=stage.clock() + 60))
    await until(lambda: stage.dispatcher.stats().queue_depth == 1)
    put_loop_forward(60)
    with pytest.raises(DeadlineExceeded):
        await late
    assert stage.dispatcher.stats().queue_depth == 0
    hold.open()
    stage.settle()
    assert models_run(stage) == [("b", 1)]


async def test_the_deadline_and_the_parameters_are_the_requests(stage, load_meta):
    stage.load("a", hooks="def preprocess(inputs, context):\n    assert context.deadline < 1e12\n    return inputs\n")
    load_meta(
        """
def run(inputs, call):
    assert call.parameters == {"k": 1}
    assert call.deadline < 1e12
    return call("a", inputs)
""",
        ["a"],
    )
    await ask(stage, 1, deadline=stage.clock() + 60.0, parameters={"k": 1})
    request = stage.stats("a")
    assert request.drops["expired_queue"] == 0


async def test_a_meta_model_without_calls_does_not_stand_at_the_gate(stage, load_meta):
    stage.load("a", sizes=(1,))
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    load_meta("def run(inputs, call):\n    return {'y': inputs['x'] * 2}\n", [], name="double")
    hold = stage.hold_run()
    waiting = [asyncio.ensure_future(ask(stage, row)) for row in range(4)]
    await asyncio.to_thread(hold.wait_entered)
    np.testing.assert_array_equal((await ask(stage, 4, name="double")).outputs["y"], rows_of(8, 1))
    hold.open()
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return call('b', inputs)", r"'meta' called model 'b', which its manifest does not declare: it has 'a'"),
        ("return call('a', {'z': inputs['x']})", r"'meta' called model 'a' with nothing for tensor 'x'"),
        ("return call('a', {'x': inputs['x'].astype('int8')})", r"with int8 \[1, 3\] for tensor 'x'"),
        ("return call('a', 3)", r"with int, not a dict of arrays"),
        ("return 3", r"run of meta model 'meta' returned int, not a dict of arrays"),
        ("return {'y': inputs['x'][0]}", r"returned float32 \[3\] for tensor 'y'"),
        ("return {}", r"returned nothing for tensor 'y'"),
        ("raise RuntimeError('secret')", r"^run of meta model 'meta' failed$"),
        ("raise SystemExit", r"^run of meta model 'meta' failed$"),
    ],
)
async def test_what_a_meta_model_gets_wrong_is_told(stage, load_meta, body, message):
    stage.load("a")
    stage.load("b")
    load_meta(f"def run(inputs, call):\n    {body}\n", ["a"])
    with pytest.raises(HookFailed, match=message):
        await ask(stage)
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    await ask(stage)


async def test_value_error_of_a_meta_model_is_the_clients_fault(stage, load_meta):
    load_meta("def run(inputs, call):\n    raise ValueError('no picture')\n", [])
    with pytest.raises(InvalidRequest, match="run of meta model 'meta': no picture"):
        await ask(stage)


async def test_calls_are_made_one_at_a_time(stage, load_meta):
    stage.load("a")
    load_meta(
        """
import threading
def run(inputs, call):
    caught = []
    def second():
        try:
            call("a", inputs)
        except Exception as error:
            caught.append(error)
    thread = threading.Thread(target=second)
    call._pending = [None]
    thread.start(); thread.join()
    call._pending = []
    raise caught[0]
""",
        ["a"],
    )
    with pytest.raises(HookFailed, match="one at a time"):
        await ask(stage)


@pytest.mark.parametrize("error", [ExecutionFailed("secret"), RuntimeError("secret")])
async def test_a_failed_sub_call_fails_the_request_unless_the_meta_model_catches_it(stage, load_meta, error):
    stage.load("a")
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    stage.backend.fail_next(error)
    with pytest.raises(ExecutionFailed, match=r"^the execution failed$"):
        await ask(stage)
    load_meta(
        "def run(inputs, call):\n    try:\n        return call('a', inputs)\n"
        "    except Exception:\n        return {'y': inputs['x'] - 1}\n",
        ["a"],
    )
    stage.backend.fail_next(error)
    np.testing.assert_array_equal((await ask(stage, 5)).outputs["y"], rows_of(4, 1))


async def test_a_value_error_of_a_sub_models_preprocess_is_the_clients(stage, load_meta):
    stage.load("a", hooks="def preprocess(inputs):\n    raise ValueError('no picture')\n")
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    with pytest.raises(InvalidRequest, match="no picture"):
        await ask(stage)


async def test_a_sub_model_that_is_not_there_is_named(stage, load_meta):
    stage.load("a")
    load_meta()
    with pytest.raises(ModelUnavailable, match="'meta' calls model 'b', which is not there"):
        await ask(stage)
    stage.load("b")
    await ask(stage)


async def test_the_first_sub_call_stands_in_the_queue_as_any_other(stage, load_meta):
    stage.load("a", sizes=(1,))
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"])
    hold = stage.hold_run()
    futures = [stage.ask(name="a")]
    await asyncio.to_thread(hold.wait_entered)
    futures += [stage.ask(name="a") for _ in range(stage.config.max_queue_depth)]
    with pytest.raises(QueueFull):
        await ask(stage)
    hold.open()
    for future in futures:
        future.result(30)


def test_a_meta_model_may_not_call_a_meta_model_whichever_comes_last(stage, load_meta):
    stage.load("a")
    load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"], name="inner")
    with pytest.raises(BundleError, match="meta model 'outer' calls 'inner', which is a meta model too"):
        load_meta("def run(inputs, call):\n    return call('inner', inputs)\n", ["inner"], name="outer")
    load_meta("def run(inputs, call):\n    return call('later', inputs)\n", ["later"], name="early")
    with pytest.raises(BundleError, match="meta model 'early' calls 'later'"):
        load_meta("def run(inputs, call):\n    return call('a', inputs)\n", ["a"], name="later")


async def test_sub_models_are_internal_unless_their_manifests_expose_them(stage, load_meta, caplog):
    stage.load("a")
    stage.load("b", manifest="expose: true\n")
    assert stage.engine.resolve("a", None)
    with caplog.at_level(logging.INFO):
        load_meta()
    told = "called by 'meta'; its manifest may say expose: true"
    assert [line for line in caplog.messages if "internal" in line] == [f"model a: internal now: {told}"]
    with pytest.raises(ModelNotFound, match=f"model 'a' is internal: {told}"):
        stage.engine.resolve("a", None)
    assert stage.engine.resolve("b", None)
    stage.control.unload_model("meta").result(30)
    assert stage.engine.resolve("a", None)


async def test_a_meta_model_is_one_unit_in_status(stage, load_meta):
    stage.backend.weights.update(a=100, b=20)
    stage.backend.cost = lambda variant, size: 0.5
    stage.load("a")
    stage.load("b")
    load_meta()
    await ask(stage, 0, 2)
    models = stage.status().read().models
    assert [model.name for model in models] == ["meta"]
    [meta] = models
    assert [part.name for part in meta.parts] == ["a", "b"]
    assert meta.serving.batching_reason == "a meta model is not batched: the models that it calls are"
    assert (meta.serving.weight_bytes, meta.serving.resident, meta.serving.ok) == (120, True, 1)
    assert meta.serving.compute_seconds == pytest.approx(1.5, abs=0.1)


async def test_a_run_stays_with_the_versions_it_began_with(stage, load_meta):
    stage.control.on_retired = stage.engine.leases.retire
    stage.load("a", sizes=(1,))
    load_meta("def run(inputs, call):\n    call('a', inputs)\n    return call('a', inputs)\n", ["a"])
    hold = stage.hold_run()
    task = asyncio.ensure_future(ask(stage, 1))
    await asyncio.to_thread(hold.wait_entered)
    reload = stage.control.load_model("a", stage.root / "a")  # the same files: a new generation all the same
    hold.open()
    await asyncio.wrap_future(reload)
    np.testing.assert_array_equal((await task).outputs["y"], rows_of(1, 1))
    np.testing.assert_array_equal((await ask(stage, 2)).outputs["y"], rows_of(2, 1))


async def test_many_meta_models_beside_ordinary_traffic_all_answer_right(stage, load_meta):
    for name in ("a", "b"):
        stage.load(name, sizes=(1, 2, 4, 8))
    load_meta()
    ordinary = [stage.ask(row, name="a") for row in range(200)]
    results = await asyncio.gather(*[ask(stage, row, 1 + row % 9) for row in range(32)])
    for row, result in enumerate(results):
        np.testing.assert_array_equal(result.outputs["y"], rows_of(row + 3, 1 + row % 9))
    assert [future.result(30).outputs["y"][0, 0] for future in ordinary] == list(range(200))
    account = stage.registry.resolve("meta").account
    assert (account.accepted, account.ok, account.in_flight) == (32, 32, 0)


async def test_the_log_says_what_the_client_does_not(stage, load_meta, caplog):
    stage.load("a")
    load_meta("def run(inputs, call):\n    raise RuntimeError('secret')\n", ["a"])
    with pytest.raises(HookFailed):
        await ask(stage)
    formatter = logging.Formatter()
    assert any("secret" in formatter.format(record) for record in caplog.records)


async def test_the_stages_of_a_request_are_no_longer_than_the_request(stage, load_meta):
    stage.backend.cost = lambda variant, size: 1.0
    stage.load("a", sizes=(1,))
    load_meta("def run(inputs, call):\n    call('a', inputs)\n    return call('a', inputs)\n", ["a"])
    for name, rows in (("meta", 1), ("a", 3)):
        began = stage.clock()
        generation = stage.registry.resolve(name)
        stage.engine.leases.take(generation)
        result = await stage.engine.infer(InferRequest(generation, {"x": rows_of(0, rows)}, began))
        stage.engine.leases.give_back(generation)
        assert sum(result.timings.stages) <= stage.clock() - began
        assert result.timings.compute == pytest.approx(2.0 if name == "meta" else 3.0, abs=0.1)


async def test_meta_models_have_no_weights_that_an_operator_could_move(make_stage):
    stage = make_stage(arena=5000, external=True)
    stage.load("a")
    path = write_meta(stage.root, "meta", ["a"], "def run(inputs, call):\n    return call('a', inputs)\n")
    stage.control.load_model("meta", path).result(30)
    stage.tuning.compact(["meta"]).result(30)
    np.testing.assert_array_equal((await ask(stage, 5)).outputs["y"], rows_of(5, 1))
    for residency in Residency:
        with pytest.raises(Unsupported, match="move those of the models it calls"):
            stage.tuning.set_residency("meta", residency).result(30)
    stage.tuning.compact([]).result(30)
    with pytest.raises(ModelUnavailable, match="'meta' calls model 'a', which is not there"):
        await ask(stage, 5)


def test_the_server_is_ready_once_a_required_meta_model_can_be_served(stage, load_meta):
    readiness = Readiness(["meta"])
    readiness.expect(["a", "meta"])
    stage.load("a")
    load_meta()
    assert not readiness.ready(stage.registry.told, alive=True)
    assert stage.control.waiting() == {"meta": "calls b, not loaded: load that too"}
    stage.load("b")
    assert readiness.ready(stage.registry.told, alive=True)
    assert stage.control.waiting() == {}


def test_an_internal_model_may_be_required(stage, load_meta):
    readiness = Readiness(["a"])
    readiness.expect(["a"])
    load_meta()
    assert not readiness.ready(stage.registry.told, alive=True)
    stage.load("a")
    assert readiness.ready(stage.registry.told, alive=True)


async def test_a_meta_model_serves_once_the_models_it_calls_do(stage, load_meta):
    stage.load("a")
    load_meta()
    [told] = stage.status().read().models
    assert (told.state, told.reason) == ("UNAVAILABLE", "calls b, not loaded: load that too")
    with pytest.raises(ModelUnavailable, match="calls model 'b'"):
        stage.engine.check_serves("meta", None)
    stage.load("b")
    stage.engine.check_serves("meta", None)
    [told] = stage.status().read().models
    assert (told.state, told.reason) == ("READY", "")
