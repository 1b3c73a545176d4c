"""What only a CUDA device can prove: `python -m pytest -m gpu -o log_cli=true --log-level=INFO tests/gpu`.

The suite that every backend passes runs there too: `python -m pytest -m gpu tests/backends`.
"""

import logging
import time
from dataclasses import replace

import numpy as np
import onnx
import pytest

from app.backends import create
from app.backends.cuda import cuda_driver
from app.backends.entry import EXTERNAL, PLAIN
from app.backends.onnxruntime import OnnxRuntimeBackend
from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig
from app.domain.config import RuntimeConfig
from app.domain.errors import OutOfMemory
from load_tests import weight_sharing
from tests.backends import models

pytestmark = pytest.mark.gpu

logger = logging.getLogger(__name__)

SIZES = weight_sharing.SIZES

#: Part of the output's range: FP32 is multiplied to three digits by default.
TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformer")
    onnx.save(weight_sharing.transformer(), str(folder / "model.onnx"))
    return folder


@pytest.fixture(scope="module")
def driver():
    return cuda_driver(0)


@pytest.fixture(scope="module")
def backend(folder):
    backend = create(RuntimeConfig(backend="cuda", cuda_graphs=False), folder / "cache")  # those are test_graphs.py's
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def entry(backend, folder):
    return backend.compile(folder / "model.onnx", weight_sharing.describe(SIZES))


@pytest.fixture
def load(backend, entry):
    """Load the transformer, as often as it is called; what is left on the device is unloaded."""
    loaded = []

    def load(backend=backend, entry=entry):
        loaded.append(backend.prepare(entry, weight_sharing.describe(SIZES)).load())
        return loaded[-1]

    yield load
    for model in loaded:
        model.unload()


def changed(backend, cache_dir, **provider):
    """A backend like another, whose provider is asked for something else."""
    config = SessionConfig(replace(PROVIDERS["cuda"], **provider), 0, 1, backend.arena_bytes())
    return OnnxRuntimeBackend(config, RuntimeConfig(backend="cuda"), cache_dir)


def answer(model, size=SIZES[-1]):
    return model.run("default", size, weight_sharing.inputs_of(size))["embedding"]


def apart(left, right):
    """The largest difference, as a part of the range."""
    return np.abs(left - right).max() / np.abs(right).max()


def seconds(run, rounds=20):
    """The median of some runs, after two that warm up."""
    run(), run()
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def test_the_transformer_is_bound_and_runs_on_the_device(entry, load):
    assert (entry.form, entry.reason) == ("bound", "")
    assert load().provider == "CUDAExecutionProvider"


def test_answers_are_those_of_the_cpu(load, folder):
    cpu = create(RuntimeConfig(backend="cpu"), folder / "cpu")
    described = weight_sharing.describe(SIZES)
    expected = cpu.prepare(cpu.compile(folder / "model.onnx", described), described).load()
    model = load()
    for size in SIZES:
        difference = apart(answer(model, size), answer(expected, size))
        logger.info("size %d: %.1e of the range apart", size, difference)
        assert difference < TOLERANCE
    expected.unload()
    cpu.close()


@pytest.mark.parametrize("make", [models.mlp, models.convolutions, models.recurrent, models.brain_float])
def test_kinds_of_layers_are_bound_too(backend, tmp_path, make):
    built, described = make()
    entry = backend.compile(models.save(tmp_path, built), described)
    logger.info("%s: %s %s", make.__name__, entry.form, entry.reason)
    assert entry.form == "bound"


def test_weights_are_on_the_device_once_and_an_eviction_gives_all_of_them_back(load, driver, entry):
    first = load()
    answer(first)  # contexts, workspaces and the arena are there from now on
    first.unload()
    before = driver.memory().in_use
    model = load()
    for size in SIZES:
        answer(model, size)
    grown = driver.memory().in_use - before
    logger.info("weights of %d bytes, device memory grew by %d", entry.weight_bytes, grown)
    assert grown < 1.35 * entry.weight_bytes
    model.unload()
    assert driver.memory().in_use - before < 0.1 * entry.weight_bytes


def test_reloads_answer_alike_and_say_what_they_take(load, folder, backend, entry):
    taken, answers = [], []
    for _ in range(6):
        begun = time.perf_counter()
        model = load()
        taken.append(time.perf_counter() - begun)
        answers.append(answer(model))
        model.unload()
    for each in answers[1:]:
        np.testing.assert_array_equal(each, answers[0])
    other = changed(backend, folder / "external", forms=(EXTERNAL, PLAIN))
    mapped = other.compile(folder / "model.onnx", weight_sharing.describe(SIZES))
    begun = time.perf_counter()
    load(other, mapped)
    whole = time.perf_counter() - begun
    other.close()
    bound, rate = float(np.median(taken[1:])), entry.weight_bytes / float(np.median(taken[1:]))
    logger.info("bound: %.1f ms, %.1f GB/s; a new session: %.1f ms", bound * 1e3, rate / 1e9, whole * 1e3)


def test_a_session_per_size_answers_alike(load, folder, driver, backend, entry):
    """What it would gain and cost decides `session_per_size` in `PROVIDERS`."""
    one = load()
    expected = {size: answer(one, size) for size in SIZES}
    times = {size: seconds(lambda size=size: answer(one, size)) for size in SIZES}
    before = driver.memory().in_use
    other = changed(backend, folder / "cache", session_per_size=True)
    many = load(other, entry)
    for size in SIZES:
        assert apart(answer(many, size), expected[size]) < TOLERANCE
        own = seconds(lambda size=size: answer(many, size))
        logger.info("size %d: one session %.3f ms, its own %.3f ms", size, times[size] * 1e3, own * 1e3)
    more = driver.memory().in_use - before - entry.weight_bytes
    logger.info("%d sessions take %d bytes besides the weights", len(SIZES), more)
    other.close()


def test_weights_come_back_whole_into_memory_that_held_something_else(load, driver, entry):
    model = load()
    expected = answer(model)
    model.unload()
    nothing = np.full(entry.weight_bytes // 4 + 1, np.nan, np.float32)
    blocks = [driver.allocate(nothing.nbytes) for _ in range(4)]
    for block in blocks:
        driver.copy_in(block, nothing.ctypes.data, nothing.nbytes)
    for block in blocks:
        driver.free(block)
    np.testing.assert_array_equal(answer(load()), expected)


def test_executions_leave_no_more_than_shrinking_gives_back(load, backend, driver):
    model = load()
    answer(model, 1)
    backend.shrink()
    before = driver.memory().in_use
    answer(model)
    after = driver.memory().in_use
    backend.shrink()
    shrunken = driver.memory().in_use
    logger.info("before %d, after a run %d, shrunken %d", before, after, shrunken)
    assert shrunken <= max(after, before)
    assert after == before or shrunken < after


def test_a_full_device_is_out_of_memory_and_serves_again_when_there_is_room(load, driver, entry):
    model = load()
    expected = answer(model)
    model.unload()
    blocks = []
    size = 1 << 30
    while size > entry.weight_bytes // 4:
        try:
            blocks.append(driver.allocate(size))
        except MemoryError:
            size //= 2
    with pytest.raises(OutOfMemory):
        load()
    for block in blocks:
        driver.free(block)
    np.testing.assert_array_equal(answer(load()), expected)


def test_other_models_are_served_while_weights_come_and_go(backend, load, tmp_path):
    built, described = models.convolutions()
    beside = backend.prepare(backend.compile(models.save(tmp_path, built), described), described).load()
    variant = described.variants[0].key
    inputs = models.inputs_for(described, 2)
    expected = beside.run(variant, 2, inputs)["y"]
    for _ in range(10):
        model = load()
        answer(model)
        np.testing.assert_allclose(beside.run(variant, 2, inputs)["y"], expected, rtol=1e-4, atol=1e-5)
        model.unload()
        np.testing.assert_allclose(beside.run(variant, 2, inputs)["y"], expected, rtol=1e-4, atol=1e-5)
    beside.unload()
