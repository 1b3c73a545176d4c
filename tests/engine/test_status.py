"""The snapshot of the node."""

import asyncio
import concurrent.futures
import os
import shutil
from functools import partial

import pytest

from app.backends.entry import StoredGraph
from app.domain.batch_safety import BatchProbe, Beside, Deviation
from app.domain.config import ModelPolicy
from app.engine.status_reader import AT_ONCE
from tests.builders import rows_of, write_identity_bundle
from tests.substitutes import Over

pytestmark = pytest.mark.anyio


def test_a_node_without_models(stage):
    status = stage.status().read()
    assert (status.backend, status.discipline, status.control_mode) == ("fake", "fifo", "dynamic")
    assert status.device == "7"
    assert (status.alive, status.queue_depth, status.models, status.problems) == (True, 0, (), {})


@pytest.mark.parametrize(
    ("mode", "residency"),
    [("dynamic", "self_managed"), ("static", "self_managed"), ("explicit", "externally_managed")],
)
def test_the_residency_mode_follows_the_control_mode(stage, mode, residency):
    assert stage.status(mode).read().residency_mode == residency


def test_models_are_listed_by_name_with_state_and_reason(stage):
    stage.load("b")
    stage.control.load_model("a", write_identity_bundle(stage.root, "a", manifest="nonsense: 1\n")).exception(30)
    models = stage.status().read().models
    assert [(model.name, model.state) for model in models] == [("a", "UNAVAILABLE"), ("b", "READY")]
    assert "nonsense" in models[0].reason
    assert models[0].serving is None


async def test_a_model_that_serves_tells_what_it_did(stage):
    stage.backend.weights["m"] = 1234
    stage.backend.graphs["m"] = tuple(StoredGraph("default", size, "" if size < 4 else "no") for size in (1, 2, 4))
    stage.policies["m"] = ModelPolicy(weight=3, max_batch_size=2)
    stage.load()
    await stage.infer({"x": rows_of(0, 3)})
    stage.settle()
    status = stage.status().read()
    [model] = status.models
    serving = model.serving
    assert serving is not None
    assert (serving.version, serving.weight, serving.max_batch_size) == ("1", 3, 2)
    assert (serving.dispatches, serving.requests, serving.rows, serving.padded_rows) == (1, 1, 3, 1)
    assert (serving.batch_rows, serving.batch_sizes) == ({3: 1}, {4: 1})
    assert (serving.accepted, serving.ok, serving.failed, serving.dropped, serving.in_flight) == (1, 1, 0, {}, 0)
    assert set(serving.costs["default"]) == {1, 2, 4}
    assert (serving.batchable, serving.batch_axis.input, serving.batch_axis.axis) == (True, "x", 1)
    assert (serving.resident, serving.provider, serving.weight_bytes) == (True, "FakeExecutionProvider", 1234)
    assert serving.graphs == {"default": (1, 2)}
    assert status.resident_weight_bytes == status.device_memory_in_use_bytes == 1234
    assert len(serving.digest) == 64


@pytest.mark.parametrize(
    ("difference", "batchable", "verdict", "figure", "reason"),
    [
        (0.0, True, "safe", 0.0, ""),
        (0.03, True, "approximate", 0.03, "changes by 0.03 of its range"),
        (0.8, False, "unsafe", 0.8, "requests run alone"),
    ],
)
def test_a_model_says_whether_it_is_batched_and_why_not(stage, difference, batchable, verdict, figure, reason):
    deviations = (Deviation("y", Beside.NEIGHBOURS, "variant 'default', 2 rows", difference, 1.0),)
    stage.backend.probes["m"] = BatchProbe(deviations, quantised=True)
    stage.load()
    serving = stage.status().read().models[0].serving
    assert (serving.batchable, serving.batch_safety, serving.batch_deviation) == (batchable, verdict, figure)
    assert reason in serving.batching_reason


def test_a_model_that_is_not_to_be_batched_says_that(stage):
    path = write_identity_bundle(stage.root)
    (path / "manifest.yaml").write_text('format_version: "1"\nbatching: {enabled: false}\n')
    stage.control.load_model("m", path).result(30)
    serving = stage.status().read().models[0].serving
    assert (serving.batchable, serving.batch_safety, serving.batch_deviation) == (False, "", None)
    assert serving.batching_reason == "the manifest turns batching off (batching.enabled)"


async def test_waits_are_told_as_quantiles_of_the_latest(stage):
    stage.load(sizes=(1,))
    hold = stage.hold_run()
    first = stage.ask()
    hold.wait_entered()
    queued = [stage.ask() for _ in range(3)]
    stage.clock.skip(5)
    hold.open()
    for each in [first, *queued]:
        each.result(30)
    stage.settle()
    serving = stage.status().read().models[0].serving
    assert 5 <= serving.wait_p50 <= serving.wait_p99 == max(stage.stats().waits)


@pytest.mark.parametrize("change", ["reload", "rename"])
def test_a_model_is_never_missed_while_it_is_swapped(stage, monkeypatch, change):
    """Registry and scheduler change one after the other, and a reader looks at both: it must not fall between."""
    stage.load()
    reader, registry = stage.status(), stage.registry
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reads = []

        def read_first(change, *args):
            reads.append(pool.submit(reader.read))
            concurrent.futures.wait(reads, 0.1)  # as far as it gets: the lock holds it up
            change(*args)

        watched = Over(registry, put=partial(read_first, registry.put), replace=partial(read_first, registry.replace))
        monkeypatch.setattr(stage.control, "_registry", watched)
        if change == "reload":
            stage.control.load_model("m", stage.root / "m").result(30)
        else:
            stage.control.rename_models([("m", "n")]).result(30)
        assert reads
        for read in reads:
            [model] = read.result(30).models
            assert model.serving is not None


def test_problems_are_told_also_of_names_that_are_no_text(stage, caplog):
    name = os.fsencode(stage.root) + b"/\xff"
    os.mkdir(name)
    (stage.root / os.fsdecode(b"\xff") / "model.onnx").touch()
    stage.watcher.first_look()
    stage.settle()
    [(path, fault)] = stage.status().read().problems.items()
    assert path == f"{stage.root}/\\xff"
    assert "no model name" in fault
    (path + fault + caplog.text).encode()
    assert path in caplog.text
    shutil.rmtree(name)


def test_reading_in_turns_tells_the_same_and_lets_others_go_between(stage):
    for name in (f"m{number}" for number in range(3 * AT_ONCE)):
        stage.load(name)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def read():
        counting = asyncio.create_task(count())
        try:
            return await stage.status().read_in_turns()
        finally:
            counting.cancel()

    told = asyncio.run(read())
    assert turns >= 6
    assert told.models == stage.status().read().models
    assert len(told.models) == 3 * AT_ONCE


def test_one_model_is_told_without_the_others(stage):
    stage.load()
    stage.load("other")
    [told] = stage.status().read(only="m").models
    assert told.name == "m"
    assert told.serving is not None
    assert stage.status().read(only="none").models == ()
