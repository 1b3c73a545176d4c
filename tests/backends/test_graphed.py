"""CUDA graphs, without CUDA: when they are recorded, what they may look at, and that they go before the weights do.

The device is host memory that is poisoned when it is freed, and what is recorded looks at no binding any more: it reads
and writes where it was told once, like a graph.
"""

import logging
import weakref
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import SessionIOBinding

from app.backends import graphed, recording, sessions
from app.backends.block import DeviceBlock, HostBlock
from app.backends.cuda import CudaDriver
from app.backends.entry import StoredGraph
from app.backends.graphed import GraphedSession, GraphMemory
from app.backends.onnxruntime import OnnxRuntimeBackend
from app.backends.slab import DeviceSlab, HostSlab
from app.domain.config import RuntimeConfig
from app.domain.errors import ExecutionFailed
from tests.backends import models
from tests.backends.conformance import assert_close
from tests.backends.devices import HostDriver, bound_config, recorded_on_cpu


class Tape:
    """In place of a binding: keeps what was bound."""

    def __init__(self, session):
        self.native = session.native
        self.bound = []

    def bind_input(self, *where):
        self.bound.append(("bind_input", where))

    def bind_output(self, *where):
        self.bound.append(("bind_output", where))


class Recorder:
    """In place of a native session: from its first execution that is not said to be plain on, it repeats that."""

    def __init__(self, native, log):
        self.native = native
        self.log = log
        self.graph = None
        self.runs = 0
        log.sessions.append(weakref.ref(self))

    def run_with_iobinding(self, tape, options):
        plain = options.get_run_config_entry("gpu_graph_id") == "-1" if self.log.names_graphs else self.runs < 2
        self.runs += 1
        if self.log.failure:
            raise RuntimeError(self.log.failure)
        if self.graph is None and not plain:
            self.graph = tuple(tape.bound)
            self.log.recorded += 1
        binding = SessionIOBinding(self.native)
        for name, where in tape.bound if self.graph is None else self.graph:
            getattr(binding, name)(*where)
            self.log.addresses.add((id(self), where[0], where[-1]))
        self.native.run_with_iobinding(binding, options)
        self.log.replays += self.graph is not None


class Log:
    """What recorders did, and what they are to do."""

    def __init__(self):
        self.sessions = []
        self.addresses = set()
        self.recorded = self.replays = 0
        self.failure = ""
        self.names_graphs = False

    @property
    def alive(self):
        return sum(session() is not None for session in self.sessions)


class Watchful(HostDriver):
    """Says of every block that is freed whether a session was still there that could replay in it."""

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.alive_when_freed = []

    def do_cuMemFree_v2(self, address):
        self.alive_when_freed.append(self.log.alive)
        super().do_cuMemFree_v2(address)


@pytest.fixture
def log(monkeypatch):
    log = Log()
    create = sessions.create_session

    def create_session(model, options, config, without=()):
        session = create(model, options, config, without)
        if without:  # it only writes a file
            return session
        session._sess = Recorder(session._sess, log)
        return session

    monkeypatch.setattr(recording, "create_session", create_session)
    monkeypatch.setattr(recording, "SessionIOBinding", Tape)
    monkeypatch.setattr("app.backends.entry.MOST_TIME", 1e9)
    return log


@pytest.fixture
def driver(monkeypatch, log):
    """Weights, inputs and outputs are memory of this driver's."""
    host = Watchful(log)
    device, cpu = CudaDriver(0, host), HostBlock(1).device
    monkeypatch.setattr("app.backends.onnxruntime.open_slab", lambda file, config: DeviceSlab(file, device, cpu))
    monkeypatch.setattr(graphed, "open_block", lambda nbytes, config: DeviceBlock(nbytes, device, cpu))
    return host


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def backend(cache, driver):
    backend = recorded_on_cpu(cache)
    yield backend
    backend.close()


@pytest.fixture
def compiled(backend, tmp_path):
    built, described = models.mlp()
    return backend.compile(models.save(tmp_path, built), described), described


@pytest.fixture
def load(backend, compiled):
    loaded = []

    def load():
        loaded.append(backend.prepare(*compiled).load())
        return loaded[-1]

    yield load
    for model in loaded:
        model.unload()


@pytest.fixture
def expected():
    """The answers of an ordinary session, by size and seed."""
    built, described = models.mlp()
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda size, seed: {"y": session.run(None, models.inputs_for(described, size, seed=seed))[0]}


def ask(model, size=2, seed=0):
    return model.run("default", size, models.inputs_for(models.mlp()[1], size, seed=seed))


def warm(model, size=2):
    """Execute until the next execution is a replay."""
    for seed in range(graphed.WARM_RUNS + 1):
        ask(model, size, seed)
    assert model._sessions["default", size].replays


def test_every_size_is_proved_and_kept_in_the_entry(compiled):
    entry, described = compiled
    assert [(graph.variant, graph.size, graph.excuse) for graph in entry.graphs] == [
        ("default", size, "") for size in described.sizes("default")
    ]
    assert entry.replayed == {"default": described.sizes("default")}
    assert all((entry.path / graph.file).exists() for graph in entry.graphs)


def test_nothing_is_recorded_until_a_size_is_warm_and_then_it_is_replayed(log, load, expected):
    model = load()
    for seed in range(graphed.WARM_RUNS):
        assert_close(ask(model, 2, seed), expected(2, seed))
    assert (log.recorded, log.alive) == (0, 0)
    assert_close(ask(model, 2, 7), expected(2, 7))
    assert (log.recorded, log.alive) == (1, 1)
    before = log.replays
    for seed in range(5):
        assert_close(ask(model, 2, seed), expected(2, seed))
    assert log.replays == before + 5
    assert log.recorded == 1


def test_all_sizes_share_one_block_and_none_ever_moves(log, driver, load, expected, compiled):
    model = load()
    sizes = compiled[1].sizes("default")
    for size in sizes:
        warm(model, size)
    known = set(log.addresses)
    assert len(driver.blocks) == 2  # weights; inputs and outputs
    assert len(driver.pinned) == 1
    for seed in range(3):
        for size in sizes:
            assert_close(ask(model, size, seed), expected(size, seed))
    assert log.addresses == known
    assert log.recorded == len(sizes)


def test_answers_outlive_the_next_replay_and_the_model(load, expected):
    model = load()
    warm(model)
    first = ask(model, 2, 1)
    ask(model, 2, 2)
    model.unload()
    assert_close(first, expected(2, 1))


def test_an_eviction_destroys_the_graphs_before_their_memory_and_a_reload_records_anew(log, driver, load, expected):
    model = load()
    warm(model, 2)
    warm(model, 10)
    driver.alive_when_freed.clear()
    model.unload()
    assert driver.alive_when_freed == [0, 0]  # block and slab, which is full of NaN now
    assert (driver.blocks, driver.pinned) == ({}, {})
    old = {where for *_, where in log.addresses}
    model = load()
    for seed in range(graphed.WARM_RUNS + 4):
        assert_close(ask(model, 2, seed), expected(2, seed))
    assert (log.recorded, log.alive) == (3, 1)
    assert {where for *_, where in log.addresses if where not in old}  # it is somewhere else


def test_a_graph_that_outlived_its_weights_would_be_noticed(driver, log, load, expected):
    """The device of these tests shows what it is there for."""
    model = load()
    warm(model)
    session = model._sessions["default", 2]._recording
    model._slab.close()
    assert np.isnan(session.replay(models.inputs_for(models.mlp()[1], 2))["y"]).any()


def test_shrinking_destroys_the_graphs_of_what_stays_loaded(log, driver, backend, load, expected):
    models_loaded = load(), load()
    for model in models_loaded:
        warm(model)
    assert len(driver.blocks) == 4
    driver.alive_when_freed.clear()
    backend.shrink()
    assert log.alive == 0
    assert len(driver.blocks) == 2  # the weights
    for seed in range(graphed.WARM_RUNS):
        assert_close(ask(models_loaded[0], 2, seed), expected(2, seed))
    assert log.alive == 0
    warm(models_loaded[0])


def test_what_cannot_be_recorded_is_said_once_and_answered_plainly_until_the_next_load(
    log, driver, load, expected, caplog
):
    model = load()
    log.failure = "CUDA failure 900: operation not permitted when stream is capturing"
    with caplog.at_level(logging.WARNING):
        for seed in range(graphed.WARM_RUNS + 4):
            assert_close(ask(model, 2, seed), expected(2, seed))
    assert [record.getMessage() for record in caplog.records] == [
        f"model m: the CUDA graph of variant 'default' at batch size 2 failed and is not used until the next load: "
        f"{log.failure}"
    ]
    assert (log.alive, len(driver.blocks), len(driver.pinned)) == (0, 1, 0)
    log.failure = ""
    ask(model)
    assert log.recorded == 0
    model.unload()
    warm(load())


def test_a_replay_that_fails_costs_no_answer(log, driver, load, expected, caplog):
    model = load()
    warm(model, 2)
    warm(model, 10)
    log.failure = "CUDA error 999"
    assert_close(ask(model, 2, 5), expected(2, 5))
    log.failure = ""
    assert len(caplog.records) == 1
    assert_close(ask(model, 2, 6), expected(2, 6))
    assert_close(ask(model, 10, 6), expected(10, 6))  # the other size goes on, in the block that they shared
    assert log.alive == 1
    assert len(driver.blocks) == 2


def test_a_graph_that_answers_something_else_serves_nobody(monkeypatch, log, load, expected, caplog):
    replay = recording.Recording.replay
    monkeypatch.setattr(
        recording.Recording, "replay", lambda self, feeds: {n: 1.01 * a for n, a in replay(self, feeds).items()}
    )
    model = load()
    for seed in range(graphed.WARM_RUNS + 3):
        assert_close(ask(model, 2, seed), expected(2, seed))
    assert "output 'y' differs" in caplog.text
    assert log.alive == 0


def test_other_shapes_are_executed_plainly_and_leave_the_graph_alone(log, load, expected):
    model = load()
    wrong = models.inputs_for(models.mlp()[1], 3)
    for _ in range(2):
        for _ in range(graphed.WARM_RUNS + 1):
            with pytest.raises(ExecutionFailed):
                model.run("default", 2, wrong)
        warm(model)
    assert_close(ask(model, 2, 3), expected(2, 3))
    assert log.recorded == 1


def test_graphs_take_no_more_than_their_part_of_the_device(backend, load, log, compiled):
    first, second = (graph.device_bytes for graph in compiled[0].graphs[:2])
    backend._graphs.limit = first + second - 1
    model = load()
    warm(model, 1)
    for seed in range(graphed.WARM_RUNS + 3):
        ask(model, 2, seed)
    assert log.recorded == 1
    backend._graphs.limit = first + second
    ask(model, 2)
    assert log.recorded == 2


def test_nothing_is_recorded_while_a_model_is_loaded(backend, load, log):
    """Another thread that allocates on the device would break the recording."""
    model = load()
    for seed in range(graphed.WARM_RUNS):
        ask(model, 2, seed)
    with backend._graphs.loading():
        ask(model)
        assert log.recorded == 0
    ask(model)
    assert log.recorded == 1


def test_weights_get_what_graphs_may_not_have(backend):
    config = replace(bound_config(), device_bytes=1600, graphs=True)
    assert GraphMemory(config).limit == 100
    assert GraphMemory(replace(config, graphs=False)).limit == 0
    assert GraphMemory(replace(config, device_bytes=0)).take(1 << 50)


def test_where_it_is_switched_off_nothing_is_tried_or_used(tmp_path, cache, compiled, backend):
    entry, described = compiled
    config = replace(backend._config, graphs=False)
    off = OnnxRuntimeBackend(config, RuntimeConfig(backend="cpu"), cache)
    other = off.compile(models.save(tmp_path / "again", models.mlp()[0]), described)
    assert other.path != entry.path  # one that was made without says nothing when it is switched on again
    assert other.graphs == ()
    assert not list(other.path.glob("graph-*"))
    for each in (entry, other):
        model = off.prepare(each, described).load()
        assert not any(isinstance(session, GraphedSession) for session in model._sessions.values())
        model.unload()
    off.close()


def test_what_gains_nothing_is_not_replayed(monkeypatch, load, log):
    monkeypatch.setattr("app.backends.entry.MOST_TIME", 0.0)
    model = load()
    for seed in range(graphed.WARM_RUNS + 2):
        ask(model, 2, seed)
    assert log.sessions == []


@pytest.mark.parametrize(
    ("graph", "excuse"),
    [
        (StoredGraph("v", 1, "control flow"), "control flow"),
        (StoredGraph("v", 1, seconds=0.9, plain_seconds=1.0), ""),
        (StoredGraph("v", 1, seconds=1.0, plain_seconds=1.0), "it would take 1e+03 ms, and 1e+03 ms without"),
    ],
)
def test_an_entry_says_why_a_size_is_not_replayed(graph, excuse):
    assert graph.excuse == excuse


def test_without_pinned_memory_copies_are_as_right(driver, load, expected):
    driver.status["cuMemAllocHost_v2"] = 2
    model = load()
    warm(model)
    assert_close(ask(model, 2, 4), expected(2, 4))
    assert driver.pinned == {}


def test_a_full_device_leaves_a_model_without_its_graph(driver, load, expected, caplog):
    model = load()
    driver.status["cuMemAlloc_v2"] = 2
    for seed in range(graphed.WARM_RUNS + 2):
        assert_close(ask(model, 2, seed), expected(2, seed))
    assert "out of memory" in caplog.text
    assert model._sound


def test_terminating_does_not_reach_into_a_recording(load, expected):
    model = load()
    warm(model)
    model.terminate()
    assert_close(ask(model, 2, 1), expected(2, 1))


def test_slabs_on_the_host_do_as_well(cache, tmp_path, log):
    """As in the suite of every backend."""
    backend = recorded_on_cpu(cache)
    built, described = models.mlp()
    model = backend.prepare(backend.compile(models.save(tmp_path, built), described), described).load()
    assert isinstance(model._slab, HostSlab)
    warm(model)
    model.unload()
    assert log.alive == 0
    backend.close()


def test_a_model_without_a_batch_is_replayed_too(backend, tmp_path, log):
    built, described = models.no_batch()
    entry = backend.compile(models.save(tmp_path, built), described)
    assert entry.replayed == {"default": (1,)}
    model = backend.prepare(entry, described).load()
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(graphed.WARM_RUNS + 4):
        inputs = models.inputs_for(described, 1, seed=seed)
        assert_close(model.run("default", 1, inputs), {"y": session.run(None, inputs)[0]})
    assert log.recorded == 1
    model.unload()
