"""One arena for all sessions: executions take turns in it, and what they left is given back when it is asked for.

A model here needs megabytes, so that whatever else the process does meanwhile does not count.
"""

import numpy as np
import pytest

from app import backends
from app.backends.memory import private_bytes
from app.domain.config import RuntimeConfig
from app.domain.tensors import TensorSpec
from tests.backends import models

MB = 1 << 20


@pytest.fixture
def backend(tmp_path):
    backend = backends.create(RuntimeConfig(backend="cpu"), tmp_path / "cache")
    yield backend
    backend.close()


def wide(megabytes, sizes=(1,)):
    """Between input and output a row takes so many megabytes, once."""
    nodes = [models.node("Expand", ["x", "shape"], ["e"]), models.node("ReduceMax", ["e", "axis"], ["y"], keepdims=1)]
    initializers = [models.constant("shape", [1, megabytes * MB // 4]), models.constant("axis", [1])]
    values = [models.value(name, models.FLOAT, ["n", 1]) for name in "xy"]
    specs = [TensorSpec(name, "FP32", (-1, 1), 0) for name in "xy"]
    built = models.model(nodes, values[:1], values[1:], initializers, opset=18)
    return built, models.spec(specs[:1], specs[1:], sizes)


@pytest.fixture
def load(backend, tmp_path):
    """Compile and load a model."""

    def load(name, built, described):
        return backend.prepare(backend.compile(models.save(tmp_path / name, built), described), described).load()

    return load


def run(model, rows=1):
    assert model.run("default", rows, {"x": np.ones((rows, 1), np.float32)})["y"].tolist() == [[1.0]] * rows


def grown(before):
    """Megabytes since then."""
    return (private_bytes() - before) / MB


def test_what_executions_left_is_given_back(backend, load):
    model = load("a", *wide(64))
    backend.shrink()
    before = private_bytes()
    run(model)
    run(model)
    assert 50 < grown(before) < 100
    backend.shrink()
    assert grown(before) < 10
    run(model)
    assert 50 < grown(before) < 100


def test_models_take_turns_in_one_arena(backend, load):
    several = [load(str(index), *wide(64 + index)) for index in range(4)]
    backend.shrink()
    before = private_bytes()
    for model in [*several, *several]:
        run(model)
    assert grown(before) < 180  # one region and what it grew from: four of their own would be 260 and more


def test_sizes_of_one_model_take_turns_too(backend, load):
    model = load("a", *wide(32, (1, 2, 3)))
    backend.shrink()
    before = private_bytes()
    for rows in (3, 1, 2, 3, 1, 2):
        run(model, rows)
    assert grown(before) < 150


def test_the_arena_does_not_grow_with_use(backend, load):
    """Many extents of a free axis, again and again."""
    nodes = [models.node("Exp", ["x"], ["e"]), models.node("ReduceMax", ["e", "axis"], ["y"], keepdims=1)]
    values = [models.value("x", models.FLOAT, ["n", "t"])], [models.value("y", models.FLOAT, ["n", 1])]
    built = models.model(nodes, *values, [models.constant("axis", [1])], opset=18)
    described = models.spec([TensorSpec("x", "FP32", (-1, -1), 0)], [TensorSpec("y", "FP32", (-1, 1), 0)], (1,))
    model = load("a", built, described)
    extents = np.random.default_rng(0).permutation(np.arange(1, 201) * 5000)
    levels = []
    for _ in range(5):
        for extent in extents:
            model.run("default", 1, {"x": np.zeros((1, extent), np.float32)})
        levels.append(private_bytes())
    assert (levels[-1] - levels[0]) / MB < 4


def test_unloading_gives_back_what_is_the_models_own(backend, load):
    before = None
    for index in range(4):
        model = load(str(index), *models.mlp())
        model.run("default", 1, models.inputs_for(models.mlp()[1], 1))
        model.unload()
        backend.shrink()
        before = before or private_bytes()
    assert grown(before) < 4


def test_strings_leave_nothing_behind(backend, load):
    described = models.text()[1]
    model = load("a", *models.text())
    inputs = {"x": np.array([[b"x" * 10_000, b"y" * 10_000]], np.object_)}
    for _ in range(200):
        model.run("default", 1, inputs)
    before = private_bytes()
    for _ in range(2_000):
        model.run("default", 1, inputs)
    assert described.sizes("default")[0] == 1
    assert grown(before) < 4
