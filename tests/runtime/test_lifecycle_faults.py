"""Models that go away while they are used: everybody is told something definite, and nothing is closed under a run."""

import asyncio
import threading

import numpy as np
import pytest

from app.domain.errors import ModelNotFound, ModelUnavailable
from app.runtime.registry import ModelState
from tests.builders import rows_of, write_identity_bundle

pytestmark = pytest.mark.anyio

#: Twice through the model `part`, which it adds nothing to.
META = """
def run(inputs, call):
    x = inputs["x"]
    for _ in range(2):
        x = call("part", {"x": x})["y"]
    return {"y": x}
"""

META_MANIFEST = """format_version: "1"
kind: meta
calls: [part]
client_inputs: [{name: x, dtype: FP32, shape: nc, dims: {c: 3}}]
client_outputs: [{name: y, dtype: FP32, shape: nc, dims: {c: 3}}]
"""

HOOKS = "def preprocess(inputs):\n    return dict(inputs)\n\ndef postprocess(outputs):\n    return dict(outputs)\n"


def load_meta(stage):
    path = stage.root / "meta"
    path.mkdir(exist_ok=True)
    (path / "manifest.yaml").write_text(META_MANIFEST)
    (path / "hooks.py").write_text(META)
    stage.control.load_model("meta", path).result(30)


def nothing_is_left(stage, *names):
    """Nothing is queued or in flight, and no model is on the device but those of these names."""
    stage.settle()
    assert stage.dispatcher.stats().queue_depth == 0
    assert stage.engine.leases.total == 0
    assert sorted(model.spec.name for model in stage.backend.loaded) == sorted(names)


async def ask_on(stage, name, row, stop, answers):
    """Ask, each time for other rows, more than the largest size takes now and then; keep what became of it."""
    while not stop.is_set():
        rows = 1 + row % 6
        try:
            outputs = (await stage.infer({"x": rows_of(row, rows)}, name)).outputs
        except (ModelNotFound, ModelUnavailable) as error:
            answers.append(error)
            await asyncio.sleep(0)
        else:
            np.testing.assert_array_equal(outputs["y"], rows_of(row, rows))
            answers.append(row)
        row += 100


async def while_asked(stage, name, clients, change, times):
    """Change something so often while clients ask; what they were answered. Answers come between the changes."""
    stop = asyncio.Event()
    answers: list[int | Exception] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for client in range(clients):
            tasks.create_task(ask_on(stage, name, client, stop, answers))
        for _ in range(times):
            seen = len(answers)
            while not any(isinstance(each, int) for each in answers[seen:]):
                await asyncio.sleep(0)
            await change()
        stop.set()
    return answers


def test_each_of_a_hundred_that_are_queued_is_told_of_the_unload(stage):
    stage.load()
    stage.load("other")
    hold = stage.hold_run()
    running = stage.ask(7)
    hold.wait_entered()
    queued = [stage.ask(row, 1 + row % 3) for row in range(100)]
    others = [stage.ask(row, name="other") for row in range(5)]
    unload = stage.control.unload_model("m")
    hold.open()
    assert unload.result(30) is None
    assert running.result(30).outputs["y"][0, 0] == 7
    assert {(type(each.exception(30)), str(each.exception(30))) for each in queued} == {
        (ModelNotFound, "model 'm' was unloaded")
    }
    assert [each.result(30).outputs["y"][0, 0] for each in others] == list(range(5))
    nothing_is_left(stage, "other")


@pytest.mark.parametrize("hooks", ["", HOOKS], ids=["plain", "hooks"])
async def test_whoever_asks_while_a_model_is_unloaded_and_loaded_again_is_answered_right_or_told(stage, hooks):
    stage.control.on_retired = stage.engine.leases.retire
    stage.load(hooks=hooks)

    async def change():
        await asyncio.wrap_future(stage.control.unload_model("m"))
        await asyncio.wrap_future(stage.control.load_model("m", stage.root / "m"))

    answers = await while_asked(stage, "m", 20, change, 20)
    assert any(isinstance(each, Exception) for each in answers)
    nothing_is_left(stage, "m")


async def test_a_reload_that_an_unload_overtakes_leaves_nothing_and_a_later_load_serves(stage):
    stage.control.on_retired = stage.engine.leases.retire
    stage.load()
    hold = stage.hold_compile()
    reload = stage.control.load_model("m", stage.root / "m")
    hold.wait_entered()
    unload = stage.control.unload_model("m")
    again = stage.control.load_model("m", stage.root / "m")
    hold.open()
    await asyncio.wrap_future(unload)
    with pytest.raises(ModelUnavailable, match="overtaken"):
        await asyncio.wrap_future(reload)
    await asyncio.wrap_future(again)
    assert stage.states() == {"m": ("READY", "")}
    assert (await stage.infer({"x": rows_of(3, 1)})).outputs["y"][0, 0] == 3
    nothing_is_left(stage, "m")


async def test_a_meta_model_whose_model_is_unloaded_answers_right_or_is_unavailable(stage):
    stage.control.on_retired = stage.engine.leases.retire
    stage.load("part")
    load_meta(stage)

    async def change():
        await asyncio.wrap_future(stage.control.unload_model("part"))
        await asyncio.wrap_future(stage.control.load_model("part", stage.root / "part"))

    answers = await while_asked(stage, "meta", 8, change, 20)
    told = [each for each in answers if isinstance(each, Exception)]
    # The meta model itself is there all the time.
    assert {type(each) for each in told} == {ModelUnavailable}, told
    assert stage.registry.entries["meta"].state is ModelState.READY
    nothing_is_left(stage, "part")


async def test_a_meta_model_whose_model_is_unloaded_between_two_calls_is_unavailable(stage):
    stage.load("part")
    load_meta(stage)
    hold = stage.hold_run()
    first = asyncio.create_task(stage.infer({"x": rows_of(0, 1)}, "meta"))
    await asyncio.to_thread(hold.wait_entered)
    unload = stage.control.unload_model("part")
    hold.open()
    await asyncio.wrap_future(unload)
    with pytest.raises(ModelUnavailable, match="'meta' calls model 'part'"):
        await first
    stage.load("part")
    assert (await stage.infer({"x": rows_of(2, 1)}, "meta")).outputs["y"][0, 0] == 2
    nothing_is_left(stage, "part")


#: What takes the model `m` off the device.
WAYS = {
    "unload": lambda stage: stage.control.unload_model("m"),
    "remove": lambda stage: stage.control.remove_model("m"),
    "reload": lambda stage: stage.control.load_model("m", stage.root / "m"),
    "rename": lambda stage: stage.control.rename_models([("other", "m")]),
    "compact": lambda stage: stage.tuning.compact([]),
    "stop": lambda stage: stage.control.stop(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("arena", [0, 4000], ids=["everything stays", "on demand"])
def test_nothing_closes_a_model_while_it_runs(make_stage, way, arena):
    stage = make_stage(arena=arena)
    write_identity_bundle(stage.root, "other")
    stage.load("other")
    stage.load()
    stage.answer()
    [used] = [model for model in stage.backend.loaded if model.spec.name == "m"]
    entered, opened, closed = threading.Event(), threading.Event(), []

    def run(*_):
        stage.backend.on_run = None
        entered.set()
        assert opened.wait(30)
        closed.append(used.unloaded)

    stage.backend.on_run = run
    running = stage.ask(5)
    assert entered.wait(30)
    change = WAYS[way](stage)
    opened.set()
    assert running.result(30).outputs["y"][0, 0] == 5
    assert change.exception(30) is None
    assert closed == [False]
    stage.settle()
    assert used.unloaded or (way, arena) == ("compact", 0)
