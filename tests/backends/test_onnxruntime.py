"""ONNX Runtime on the CPU: passes the suite of every backend, and answers as a plain session does."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from app.backends import create
from app.backends.cuda import CudaDriver
from app.domain.batch_safety import BatchProbe, Beside, Deviation
from app.domain.config import RuntimeConfig
from app.domain.errors import BundleError, ExecutionFailed, OutOfMemory, Unsupported
from app.domain.tensors import TensorSpec
from app.runtime.loader import admit
from tests.backends import models
from tests.backends.conformance import *  # noqa: F403
from tests.backends.conformance import assert_close
from tests.backends.devices import bound_on_cpu, recorded_on_cpu


def device_answers():
    try:
        CudaDriver(0)
    except OSError:
        return False
    return True


@pytest.fixture(
    scope="module",
    params=["cpu", "bound", "recorded", *[pytest.param(kind, marks=pytest.mark.gpu) for kind in ("cuda", "graphs")]],
    ids=[
        "onnxruntime-cpu",
        "onnxruntime-cpu-bound",
        "onnxruntime-cpu-recorded",
        "onnxruntime-cuda",
        "onnxruntime-cuda-recorded",
    ],
)
def backend(request, tmp_path_factory):
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # answers are compared to six digits
    cache, kind = tmp_path_factory.mktemp("cache"), request.param
    with pytest.MonkeyPatch.context() as patch:
        if kind in ("recorded", "graphs"):  # replayed from the second execution on, whatever that gains
            patch.setattr("app.backends.graphed.WARM_RUNS", 0)
            patch.setattr("app.backends.entry.MOST_TIME", inf)
        makers = {"bound": bound_on_cpu, "recorded": recorded_on_cpu}
        make = makers.get(kind, lambda cache: create(RuntimeConfig(backend="cpu" if kind == "cpu" else "cuda"), cache))
        backend = make(cache)
        yield backend
        backend.close()


@pytest.fixture
def load(backend, tmp_path):
    loaded = []

    def load(built, described):
        file = models.save(tmp_path, built)
        loaded.append(backend.prepare(backend.compile(file, described), described).load())
        return loaded[-1]

    yield load
    for model in loaded:
        model.unload()


def plain(built, inputs):
    """The answers of an ordinary session, by name."""
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


MAKERS = [
    models.mlp,
    models.convolutions,
    models.recurrent,
    models.two_names,
    models.one_name_twice,
    models.no_batch,
    models.subgraphs,
    models.one_weight_two_kernels,
    models.tiny,
]


@pytest.mark.parametrize("make", MAKERS)
def test_answers_are_those_of_a_plain_session(load, make):
    built, described = make()
    model = load(built, described)
    variant = described.variants[0].key
    for size in described.sizes(variant) or (1,):
        inputs = models.inputs_for(described, size, seed=size)
        assert_close(model.run(variant, size, inputs), plain(built, inputs))


@pytest.mark.parametrize("make", [models.running_sum, models.gated, models.reduced, models.convolutions, models.tiny])
def test_an_entry_also_serves_a_model_whose_batches_are_found_to_be_none(backend, tmp_path, make):
    """What is compiled is the model as declared; the verdict on it comes later."""
    built, declared = make()
    entry = backend.compile(models.save(tmp_path, built), declared)
    unsafe = Deviation("y", Beside.NEIGHBOURS, "here", 1.0, 1.0)
    admitted = admit(declared, BatchProbe((unsafe,)), None)
    model = backend.prepare(entry, admitted).load()
    for variant in admitted.variants:
        for rows in (1, 3, 11):
            inputs = models.inputs_for(replace(admitted, variants=(variant,)), rows)
            assert_close(model.run(variant.key, rows, inputs), plain(built, inputs))
    model.unload()


def test_a_batch_dim_without_a_name_is_fixed_all_the_same(load):
    built, described = models.mlp(batch=None)
    model = load(built, described)
    inputs = models.inputs_for(described, 2)
    assert_close(model.run("default", 2, inputs), plain(built, inputs))
    with pytest.raises(ExecutionFailed, match="Got: 3 Expected: 2"):
        model.run("default", 2, models.inputs_for(described, 3))


def test_text_is_exact_whatever_it_holds(load):
    built, described = models.text()
    model = load(built, described)
    words = np.array([[b"", "naïve".encode()], [b"a\0b", "🙂".encode()]], np.object_)
    np.testing.assert_array_equal(model.run("default", 2, {"x": words})["y"], words)


def test_text_that_is_no_utf8_fails_alone(load):
    built, described = models.text()
    model = load(built, described)
    with pytest.raises(ExecutionFailed, match="utf-8"):
        model.run("default", 1, {"x": np.array([[b"\xff", b""]], np.object_)})


def test_brain_floats_are_raw_bits(load):
    built, described = models.brain_float()
    model = load(built, described)
    inputs = models.inputs_for(described, 4)
    outputs = model.run("default", 4, inputs)
    wide = (inputs["x"].astype(np.uint32) << 16).view(np.float32)
    weights = onnx.numpy_helper.to_array(built.graph.initializer[0])
    assert outputs["y"].dtype == np.uint16
    got = (outputs["y"].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got, wide @ weights, rtol=1e-2, atol=1e-2)


def test_brain_floats_come_back_from_no_model_that_takes_text(load):
    with pytest.raises(BundleError, match="FP32"):
        load(*models.brain_float_and_text(models.BF16))


def test_outputs_without_elements_keep_their_shape(load):
    nodes = [models.node("NonZero", ["x"], ["i"]), models.node("Cast", ["i"], ["y"], to=models.BF16)]
    values = [models.value("x", models.FLOAT, ["n"])], [models.value("y", models.BF16, [1, None])]
    described = models.spec([TensorSpec("x", "FP32", (-1,), 0)], [TensorSpec("y", "BF16", (1, -1))])
    model = load(models.model(nodes, *values), described)
    assert model.run("default", 3, {"x": np.zeros(3, np.float32)})["y"].shape == (1, 0)


def expanding():
    """One input says how large the activations get."""
    nodes = [models.node("Expand", ["x", "s"], ["e"]), models.node("ReduceSum", ["e"], ["y"], keepdims=0)]
    built = models.model(
        nodes,
        [models.value("x", models.FLOAT, [1]), models.value("s", models.INT64, [2])],
        [models.value("y", models.FLOAT, [])],
    )
    return built, models.spec(
        [TensorSpec("x", "FP32", (1,)), TensorSpec("s", "INT64", (2,))], [TensorSpec("y", "FP32", ())]
    )


def test_more_activations_than_memory_are_out_of_memory_and_the_model_goes_on(load):
    model = load(*expanding())
    one = np.ones(1, np.float32)
    with pytest.raises(OutOfMemory, match="allocate"):
        model.run("default", 1, {"x": one, "s": np.array([1 << 30, 1 << 20])})
    assert model.run("default", 1, {"x": one, "s": np.array([3, 5])})["y"] == 15


def test_a_running_execution_ends_when_it_is_told_to(load):
    """A loop that would take hours: only `terminate`, repeated until it catches a node, ends it."""
    body = helper.make_graph(
        [
            models.node("Identity", ["go"], ["go_on"]),
            models.node("MatMul", ["v", "w"], ["next"]),
        ],
        "body",
        [
            models.value("i", models.INT64, []),
            models.value("go", TensorProto.BOOL, []),
            models.value("v", models.FLOAT, None),
        ],
        [models.value("go_on", TensorProto.BOOL, []), models.value("next", models.FLOAT, None)],
    )
    nodes = [models.node("Loop", ["times", "yes", "x"], ["y"], body=body)]
    built = models.model(
        nodes,
        [models.value("x", models.FLOAT, ["n", 33]), models.value("times", models.INT64, [])],
        [models.value("y", models.FLOAT, ["n", 33])],
        [models.weights("w", 33, 33), models.constant("yes", True, np.bool_)],
    )
    inputs = [TensorSpec("x", "FP32", (-1, 33), 0), TensorSpec("times", "INT64", ())]
    model = load(built, models.spec(inputs, [TensorSpec("y", "FP32", (-1, 33), 0)]))
    feeds = {"x": np.ones((1, 33), np.float32), "times": np.array(1 << 40)}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(model.run, "default", 1, feeds)
        while not running.done():
            model.terminate()
        with pytest.raises(ExecutionFailed) as failure:
            running.result()
    assert failure.value.code == "terminated"
    assert model.run("default", 1, {**feeds, "times": np.array(2)})["y"].shape == (1, 33)


def test_weights_are_shared_where_there_are_any(backend, tmp_path):
    built, described = models.mlp()
    entry = backend.compile(models.save(tmp_path, built), described)
    assert entry.form in ("prepacked", "bound")
    assert entry.reason == ""
    assert entry.weight_bytes == (entry.path / "weights.bin").stat().st_size


def test_mapped_weights_count_as_memory_in_use_while_they_are_loaded(backend, tmp_path):
    if backend.name != "cpu":
        pytest.skip("the device itself says what is in use")
    nodes = [models.node("MatMul", ["x", "w"], ["y"])]
    values = [models.value("x", models.FLOAT, ["n", 1024])], [models.value("y", models.FLOAT, ["n", 2048])]
    built = models.model(nodes, *values, [models.weights("w", 1024, 2048)])
    described = models.spec([TensorSpec("x", "FP32", (-1, 1024), 0)], [TensorSpec("y", "FP32", (-1, 2048), 0)])
    prepared = backend.prepare(backend.compile(models.save(tmp_path, built), described), described)
    before = backend.memory().in_use
    model = prepared.load()
    assert backend.memory().in_use > before + model.weight_bytes // 2
    model.unload()
    assert backend.memory().in_use < before + model.weight_bytes // 2


def test_a_damaged_entry_is_no_model(backend, tmp_path):
    built, described = models.mlp(sizes=(1, 3))
    entry = backend.compile(models.save(tmp_path, built), described)
    os.truncate(entry.path / "weights.bin", 100)
    with pytest.raises(BundleError, match="damaged"):
        backend.prepare(entry, described)


@pytest.mark.skipif(device_answers(), reason="a CUDA device answers here")
@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_without_a_device_the_cpu_serves_where_it_may(choice, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")  # and no child is needed to find out
    with_fallback = create(RuntimeConfig(backend=choice, allow_cpu_fallback=True), tmp_path)
    assert with_fallback.name == "cpu"
    if choice == "cuda":
        with pytest.raises(Unsupported, match="allow_cpu_fallback"):
            create(RuntimeConfig(backend="cuda"), tmp_path)
