"""Weights outside the sessions: shared by all sizes, gone with an eviction, and back with the next load."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from app.backends.bound import MOST_KEPT
from app.backends.cuda import CudaDriver
from app.backends.memory import private_bytes
from app.backends.slab import DeviceSlab, HostSlab
from app.domain.errors import BundleError, ExecutionFailed, OutOfMemory
from app.domain.tensors import TensorSpec
from tests.backends import models
from tests.backends.conformance import assert_close
from tests.backends.devices import HostDriver, bound_on_cpu


@pytest.fixture
def backend(tmp_path):
    backend = bound_on_cpu(tmp_path / "cache")
    yield backend
    backend.close()


@pytest.fixture
def driver(monkeypatch):
    """The slabs of models are memory of this driver's, which sessions on the CPU can read."""
    host = HostDriver()
    device = CudaDriver(0, host)

    def open_slab(file, config):
        return DeviceSlab(file, device, HostSlab(file).device)

    monkeypatch.setattr("app.backends.onnxruntime.open_slab", open_slab)
    return host


@pytest.fixture
def compiled(backend, tmp_path):
    built, described = models.mlp()
    return backend.compile(models.save(tmp_path, built), described), described


def answers(model, described):
    return {size: model.run("default", size, models.inputs_for(described, size)) for size in described.sizes("default")}


def mappings(entry):
    """How often the weights of an entry are in the address space."""
    return Path("/proc/self/maps").read_text().count(str(entry.path / "weights.bin"))


def test_all_sizes_read_one_copy_of_the_weights_which_an_eviction_frees(backend, compiled):
    entry, described = compiled
    assert entry.form == "bound"
    model = backend.prepare(entry, described).load()
    expected = answers(model, described)
    assert mappings(entry) == 1
    model.unload()
    assert mappings(entry) == 0
    with pytest.raises(ExecutionFailed):
        model.run("default", 1, models.inputs_for(described, 1))
    again = backend.prepare(entry, described).load()
    for size, outputs in answers(again, described).items():
        assert_close(outputs, expected[size])
    again.unload()


def test_a_load_is_one_block_and_an_eviction_leaves_none(driver, backend, compiled):
    entry, described = compiled
    model = backend.prepare(entry, described).load()
    answers(model, described)
    assert driver.calls.count("cuMemAlloc_v2") == 1
    assert [block.nbytes >= entry.weight_bytes for block in driver.blocks.values()] == [True]
    model.unload()
    model.unload()
    assert driver.blocks == {}


def test_weights_come_back_whole_into_memory_that_held_something_else(driver, backend, compiled):
    entry, described = compiled
    model = backend.prepare(entry, described).load()
    expected = answers(model, described)
    model.unload()  # this driver leaves NaN behind, wherever a session might still look
    other = backend.prepare(entry, described).load()
    for size, outputs in answers(other, described).items():
        assert_close(outputs, expected[size])
    other.unload()


def test_sessions_outlive_the_weights_and_are_taken_up_again(backend, compiled, monkeypatch):
    entry, described = compiled
    model = backend.prepare(entry, described).load()
    expected = answers(model, described)
    model.unload()
    monkeypatch.setattr("onnxruntime.InferenceSession", None)  # from here on none can be made
    again = backend.prepare(entry, described).load()
    assert_close(answers(again, described)[2], expected[2])
    with pytest.raises(BundleError, match="NoneType"):  # for one beside it
        backend.prepare(entry, described)
    again.unload()


def test_sessions_of_few_models_are_kept_and_of_none_when_memory_is_to_be_given_back(backend, tmp_path):
    built, described = models.mlp()
    entries = [backend.compile(models.save(tmp_path, built), described) for _ in range(MOST_KEPT + 2)]

    def kept(entry):
        model = backend.prepare(entry, described).load()
        session = weakref.ref(next(iter(model._sessions.values())))
        model.unload()
        return session

    sessions = [kept(entry) for entry in entries]
    assert [session() is None for session in sessions] == [True] * 2 + [False] * MOST_KEPT
    backend.shrink()
    assert [session() for session in sessions] == [None] * len(sessions)


def test_sessions_end_with_what_they_were_made_from(backend, tmp_path):
    built, described = models.mlp()
    entry = backend.compile(models.save(tmp_path, built), described)
    model = backend.prepare(entry, described).load()
    sessions = [weakref.ref(session) for session in model._sessions.values()]
    model.unload()
    del model
    gc.collect()
    assert all(session() is not None for session in sessions)
    del entry
    gc.collect()
    assert [session() for session in sessions] == [None] * 3


def test_a_session_that_ran_out_of_memory_is_not_used_again(backend, tmp_path, monkeypatch):
    nodes = [
        models.node("MatMul", ["x", "w"], ["m"]),
        models.node("Expand", ["m", "s"], ["e"]),
        models.node("ReduceSum", ["e"], ["y"], keepdims=0),
    ]
    inputs = [models.value("x", models.FLOAT, [1, 33]), models.value("s", models.INT64, [3])]
    built = models.model(nodes, inputs, [models.value("y", models.FLOAT, [])], [models.weights("w", 33, 33)])
    described = models.spec(
        [TensorSpec("x", "FP32", (1, 33)), TensorSpec("s", "INT64", (3,))], [TensorSpec("y", "FP32", ())]
    )
    entry = backend.compile(models.save(tmp_path, built), described)
    assert entry.form == "bound"
    model = backend.prepare(entry, described).load()
    with pytest.raises(OutOfMemory):
        model.run("default", 1, {"x": np.ones((1, 33), np.float32), "s": np.array([1 << 40, 1, 1])})
    model.unload()
    assert mappings(entry) == 0
    monkeypatch.setattr("onnxruntime.InferenceSession", None)
    with pytest.raises(BundleError, match="NoneType"):  # it wants to make new ones
        backend.prepare(entry, described)


def test_weights_in_branches_keep_their_sessions_whole(backend, tmp_path):
    built, described = models.subgraphs()
    entry = backend.compile(models.save(tmp_path, built), described)
    assert entry.form == "external"
    assert "not bound" in entry.reason
    assert "branches" in entry.reason


def test_the_memory_of_outputs_goes_with_whoever_has_them(backend, tmp_path):
    """The binding of a session is kept, and what it was bound to must not be."""
    nodes = [models.node("MatMul", ["x", "w"], ["m"]), models.node("Expand", ["m", "s"], ["y"])]
    inputs = [models.value("x", models.FLOAT, [1, 33]), models.value("s", models.INT64, [2])]
    built = models.model(nodes, inputs, [models.value("y", models.FLOAT, [None, 33])], [models.weights("w", 33, 33)])
    described = models.spec(
        [TensorSpec("x", "FP32", (1, 33)), TensorSpec("s", "INT64", (2,))], [TensorSpec("y", "FP32", (-1, 33))]
    )
    entry = backend.compile(models.save(tmp_path, built), described)
    assert entry.form == "bound"
    model = backend.prepare(entry, described).load()
    feeds = {"x": np.ones((1, 33), np.float32), "s": np.array([1 << 20, 33])}
    backend.shrink()
    before = private_bytes()
    nbytes = model.run("default", 1, feeds)["y"].nbytes
    backend.shrink()
    assert private_bytes() - before < nbytes / 2
    model.unload()
