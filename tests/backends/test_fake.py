"""The fake passes the suite of every backend, and does what tests script it to do."""

import numpy as np
import pytest

from app.backends.base import Backend
from app.backends.fake import Call, FakeBackend
from app.domain.errors import ExecutionFailed, OutOfMemory
from app.domain.tensors import TensorSpec
from tests.backends import models
from tests.backends.conformance import *  # noqa: F403


@pytest.fixture
def backend() -> Backend:
    return FakeBackend()


@pytest.fixture
def load(backend, tmp_path):
    return lambda built, described: loaded(backend, tmp_path / "model.onnx", described)


def loaded(backend, file, described):
    return backend.prepare(backend.compile(file, described), described).load()


def vectors(rows):
    return {"x": np.arange(rows * 33, dtype=np.float32).reshape(rows, 33)}


def test_outputs_are_row_sums(tmp_path):
    backend = FakeBackend()
    model = loaded(backend, tmp_path / "m", models.mlp()[1])
    outputs = model.run("default", 2, vectors(2))["y"]
    np.testing.assert_allclose(outputs, np.repeat(vectors(2)["x"].sum(1, keepdims=True), 31, axis=1))


def test_an_output_like_the_input_is_the_input(tmp_path):
    described = models.spec([TensorSpec("x", "FP32", (-1, 33), 0)], [TensorSpec("y", "FP32", (-1, 33), 0)])
    model = loaded(FakeBackend(), tmp_path / "m", described)
    np.testing.assert_array_equal(model.run("default", 2, vectors(2))["y"], vectors(2)["x"])


def test_calls_are_recorded_in_order(tmp_path):
    backend = FakeBackend()
    model = loaded(backend, tmp_path / "m", models.mlp()[1])
    model.run("default", 2, vectors(2))
    model.run("default", 1, vectors(1))
    assert backend.calls == [Call("m", "default", 2, 2), Call("m", "default", 1, 1)]


def test_scripted_failures_are_raised_in_turn_and_recorded(tmp_path):
    backend = FakeBackend()
    model = loaded(backend, tmp_path / "m", models.mlp()[1])
    backend.fail_next(OutOfMemory("full"), None, ExecutionFailed("bad"))
    with pytest.raises(OutOfMemory, match="full"):
        model.run("default", 1, vectors(1))
    model.run("default", 1, vectors(1))
    with pytest.raises(ExecutionFailed, match="bad"):
        model.run("default", 1, vectors(1))
    model.run("default", 1, vectors(1))
    assert len(backend.calls) == 4


def test_a_run_spends_its_cost_on_the_clock_that_it_is_given(tmp_path):
    clock: list[float] = []
    backend = FakeBackend(cost=lambda variant, size: 0.5 * size, spend=clock.append)
    model = loaded(backend, tmp_path / "m", models.mlp()[1])
    model.run("default", 2, vectors(2))
    assert clock == [1.0]


def test_a_run_terminated_while_its_hook_holds_it_fails(tmp_path):
    backend = FakeBackend()
    model = loaded(backend, tmp_path / "m", models.mlp()[1])
    backend.on_run = lambda variant, size, inputs: model.terminate()
    with pytest.raises(ExecutionFailed) as failure:
        model.run("default", 1, vectors(1))
    assert failure.value.code == "terminated"
    backend.on_run = None
    model.run("default", 1, vectors(1))


def test_hooks_of_compile_and_prepare_see_the_model_and_may_fail_it(tmp_path):
    def refuse(*arguments):
        raise ValueError(arguments[-1].name)

    described = models.mlp()[1]
    with pytest.raises(ValueError, match="m"):
        FakeBackend(on_compile=refuse).compile(tmp_path / "m", described)
    backend = FakeBackend(on_prepare=refuse)
    with pytest.raises(ValueError, match="m"):
        backend.prepare(backend.compile(tmp_path / "m", described), described)


def test_memory_follows_loading_and_unloading(tmp_path):
    backend = FakeBackend(weights={"m": 3000}, limit=5000)
    model = loaded(backend, tmp_path / "m", models.mlp()[1])
    assert (backend.memory().in_use, backend.memory().limit) == (3000, 5000)
    model.unload()
    assert backend.memory().in_use == 0


def test_closing_is_remembered():
    backend = FakeBackend()
    backend.close()
    assert backend.closed
