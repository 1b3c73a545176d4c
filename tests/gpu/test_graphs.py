"""CUDA graphs on a CUDA device: `python -m pytest -m gpu -o log_cli=true --log-level=INFO tests/gpu/test_graphs.py`.

The suite that every backend passes runs over them too: `python -m pytest -m gpu tests/backends`.
"""

import logging
import threading
from contextlib import suppress

import numpy as np
import onnx
import pytest

from app.backends import create, graphed
from app.backends.cuda import cuda_driver
from app.domain.config import RuntimeConfig
from load_tests import weight_sharing
from tests.backends import models
from tests.gpu.test_cuda import SIZES, TOLERANCE, apart, seconds

pytestmark = pytest.mark.gpu

logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformer")
    onnx.save(weight_sharing.transformer(), str(folder / "model.onnx"))
    return folder


@pytest.fixture(scope="module")
def driver():
    return cuda_driver(0)


@pytest.fixture(scope="module", autouse=True)
def whatever_it_gains():
    """Every size is replayed; what it gains is in the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.backends.entry.MOST_TIME", 1e9)
        yield


@pytest.fixture(scope="module")
def backend(folder):
    backend = create(RuntimeConfig(backend="cuda"), folder / "cache")
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def plain(folder):
    backend = create(RuntimeConfig(backend="cuda", cuda_graphs=False), folder / "cache")
    yield backend
    backend.close()


def entry_of(backend, folder):
    return backend.compile(folder / "model.onnx", weight_sharing.describe(SIZES))


@pytest.fixture
def load(backend, folder):
    """Load the transformer, as often as it is called; what is left on the device is unloaded."""
    loaded = []

    def load(backend=backend):
        loaded.append(backend.prepare(entry_of(backend, folder), weight_sharing.describe(SIZES)).load())
        return loaded[-1]

    yield load
    for model in loaded:
        model.unload()


def inputs_of(size, seed=0):
    """Other values in the same places."""
    inputs = weight_sharing.inputs_of(size)
    random = np.random.default_rng(seed)
    return inputs if not seed else {name: random.permuted(array, axis=-1) for name, array in inputs.items()}


def answer(model, size=SIZES[-1], seed=0):
    return model.run("default", size, inputs_of(size, seed))["embedding"]


def warm(model, sizes=SIZES):
    for size in sizes:
        for _ in range(graphed.WARM_RUNS + 1):
            answer(model, size)
        assert model._sessions["default", size].replays, f"size {size}: see the log"


def test_every_size_of_the_transformer_is_proved_in_the_child(backend, folder):
    for graph in entry_of(backend, folder).graphs:
        logger.info(
            "size %d: %s; %.3f ms, plain %.3f ms; %d bytes of the device",
            graph.size,
            graph.reason or "proved",
            graph.seconds * 1e3,
            graph.plain_seconds * 1e3,
            graph.device_bytes,
        )
        assert graph.reason == ""
        assert graph.device_bytes > 0


@pytest.mark.parametrize("make", [models.mlp, models.convolutions, models.two_names])
def test_kinds_of_layers_are_proved_too(backend, tmp_path, make):
    built, described = make()
    graphs = backend.compile(models.save(tmp_path, built), described).graphs
    for graph in graphs:
        logger.info("%s, %s, size %d: %s", make.__name__, graph.variant, graph.size, graph.reason or "proved")
    assert [graph.reason for graph in graphs] == [""] * len(graphs)


def test_replays_answer_as_plain_executions_whatever_runs_between(load, plain):
    recorded, other = load(), load(plain)
    warm(recorded)
    worst = 0.0
    for seed in range(1, 6):
        for size in SIZES:
            expected = answer(other, size, seed)
            worst = max(worst, apart(answer(recorded, size, seed), expected))
    logger.info("at most %.1e of the range apart", worst)
    assert worst < TOLERANCE


def test_reloads_into_memory_that_held_something_else_record_anew_and_answer_alike(load, driver, backend, folder):
    nbytes = entry_of(backend, folder).weight_bytes
    nothing = np.full(nbytes // 4 + 1, np.nan, np.float32)
    expected = None
    for _ in range(3):
        model = load()
        warm(model)
        found = {size: answer(model, size, 3) for size in SIZES}
        expected = expected or found
        for size in SIZES:
            assert apart(found[size], expected[size]) < TOLERANCE
        model.unload()
        blocks = []
        with suppress(MemoryError):
            blocks += [driver.allocate(nothing.nbytes) for _ in range(4)]
        for block in blocks:
            driver.copy_in(block, nothing.ctypes.data, nothing.nbytes)
        for block in blocks:
            driver.free(block)


def test_an_unload_gives_back_what_graphs_had(load, driver, backend, folder):
    model = load()
    warm(model)
    model.unload()  # contexts, workspaces and the arena are there from now on
    before = driver.memory().in_use
    for _ in range(3):
        model = load()
        loaded = driver.memory().in_use
        warm(model)
        grown = driver.memory().in_use - loaded
        model.unload()
        kept = driver.memory().in_use - before
        logger.info("graphs took %d bytes, %d noted; %d are left", grown, backend._graphs._taken, kept)
        assert backend._graphs._taken == 0
        assert kept < 0.1 * entry_of(backend, folder).weight_bytes


def test_shrinking_gives_back_what_graphs_had_and_they_are_recorded_anew(load, driver, backend):
    model = load()
    expected = answer(model, 1)
    backend.shrink()
    before = driver.memory().in_use
    warm(model)
    recorded = driver.memory().in_use
    backend.shrink()
    after = driver.memory().in_use
    logger.info("before %d, recorded %d, shrunken %d", before, recorded, after)
    assert after < recorded
    assert apart(answer(model, 1), expected) < TOLERANCE
    warm(model)
    assert apart(answer(model, 1), expected) < TOLERANCE


def test_other_threads_may_allocate_and_copy_while_one_records(load, driver, backend, caplog):
    """As a load does. In the server nothing is recorded then; this is what holds where the two meet."""
    stop, faults, rounds = threading.Event(), [], [0]
    content = np.ones(1 << 22, np.uint8)

    def disturb():
        while not stop.is_set():
            try:
                block = driver.allocate(content.nbytes)
                driver.copy_in(block, content.ctypes.data, content.nbytes)
                driver.free(block)
                rounds[0] += 1
            except Exception as error:
                faults.append(error)

    model = load()
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(5):
            warm(model)
            backend.shrink()
    finally:
        stop.set()
        thread.join()
    logger.info("%d allocations beside", rounds[0])
    assert faults == []
    assert caplog.records == [] or all("CUDA graph" not in record.getMessage() for record in caplog.records)


def test_what_replaying_gains(load, plain):
    recorded, other = load(), load(plain)
    warm(recorded)
    for size in SIZES:
        with_graph = seconds(lambda size=size: answer(recorded, size))
        without = seconds(lambda size=size: answer(other, size))
        logger.info("size %d: replayed %.3f ms, plain %.3f ms", size, with_graph * 1e3, without * 1e3)
