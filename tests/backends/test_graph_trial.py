"""CUDA graphs are proved where only the compile child can be lost, and a child that is costs nothing but them."""

import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from app.backends import recording, sessions
from app.backends.child import CHILD_MODULE
from app.backends.compiler import Compiler
from app.backends.entry import StoredEntry
from app.backends.graph import name_axes, read_graph
from app.backends.graph_trial import LEAST_INPUTS, GraphTrial
from app.backends.optimise import write_form
from app.backends.recording import Recording, fixed_shapes, write_fixed
from app.domain.errors import BundleError
from app.domain.tensors import Array, TensorSpec
from tests.backends import models
from tests.backends.conformance import assert_close
from tests.backends.devices import bound_config, bound_on_cpu

CONFIG = replace(bound_config(), graphs=True)


def written(folder, built, described):
    """A bound entry, as it is before it is tried."""
    file = models.save(folder, built)
    target = folder / "entry"
    target.mkdir()
    layout = name_axes(built, described, file)
    return target, write_form("bound", built, folder, target, layout, CONFIG)


def tried(folder, built, described, sample=None):
    path, entry = written(folder, built, described)
    trial = GraphTrial(path, entry, described, sample, CONFIG)
    return trial.run(), trial.spoilt, path


def reasons(graphs):
    [reason] = {graph.reason for graph in graphs}
    return reason


@pytest.mark.parametrize("make", [models.mlp, models.convolutions, models.two_names, models.one_weight_two_kernels])
def test_what_answers_alike_is_proved_and_has_its_file(tmp_path, make):
    built, described = make()
    graphs, spoilt, path = tried(tmp_path, built, described)
    shapes = [(variant.key, size) for variant in described.variants for size in variant.compiled_sizes]
    assert [(graph.variant, graph.size) for graph in graphs] == shapes
    assert not spoilt
    for graph in graphs:
        assert graph.reason == ""
        assert (path / graph.file).exists()
        assert 0 < graph.block_bytes <= graph.device_bytes
        assert graph.seconds > 0
        assert graph.plain_seconds > 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (models.recurrent, "axis 0 of input 'x' is free"),
        (models.brain_float, "BF16 tensors are converted at every execution"),
    ],
)
def test_what_has_no_fixed_shapes_or_values_is_not_tried(tmp_path, make, reason):
    graphs, spoilt, path = tried(tmp_path, *make())
    assert reasons(graphs) == reason
    assert not spoilt
    assert not list(path.glob("graph-*"))


def test_a_model_of_one_shape_is_recorded_without_a_batch(tmp_path):
    graphs, *_ = tried(tmp_path, *models.no_batch())
    assert [(graph.variant, graph.size, graph.reason) for graph in graphs] == [("default", 0, "")]


def test_a_batch_that_is_free_is_not_recorded(tmp_path):
    built, described = models.mlp()
    graphs, *_ = tried(tmp_path, built, models.spec(described.inputs, described.outputs, batching=False))
    assert reasons(graphs) == "axis 0 of input 'x' is free"


def test_a_shape_that_depends_on_values_is_not_recorded(tmp_path):
    nodes = [models.node("MatMul", ["x", "w"], ["m"]), models.node("NonZero", ["m"], ["y"])]
    inputs, outputs = [models.value("x", models.FLOAT, [3, 33])], [models.value("y", models.INT64, [2, None])]
    built = models.model(nodes, inputs, outputs, [models.weights("w", 33, 33)])
    described = models.spec([TensorSpec("x", "FP32", (3, 33))], [TensorSpec("y", "INT64", (2, -1))])
    graphs, *_ = tried(tmp_path, built, described)
    assert reasons(graphs) == "the shape of output 'y' depends on more than the shapes of the inputs"


def test_a_replay_of_old_inputs_is_not_proved_and_the_process_is_spoilt(tmp_path, monkeypatch):
    answers: dict[int, object] = {}
    replay = Recording.replay

    def stale(self, feeds):
        return answers.setdefault(id(self), replay(self, feeds))

    monkeypatch.setattr(Recording, "replay", stale)
    graphs, spoilt, path = tried(tmp_path, *models.mlp())
    assert {graph.reason.split(" by ")[0] for graph in graphs} == {"output 'y' differs"}
    assert spoilt
    assert not list(path.glob("graph-*"))


def test_a_replay_that_only_ignores_one_input_is_not_proved(tmp_path, monkeypatch):
    """Each input is changed alone."""
    execute = Recording._execute
    first: dict[int, Array] = {}

    def deaf(self, feeds, options):
        kept = first.setdefault(id(self), feeds["b"])
        return execute(self, {**feeds, "b": kept}, options)

    monkeypatch.setattr(Recording, "_execute", deaf)
    graphs, *_ = tried(tmp_path, *models.two_names())
    assert all(graph.reason.startswith("output 'y' differs") for graph in graphs)


def test_one_that_the_next_one_breaks_is_not_proved(tmp_path, monkeypatch):
    """They are all asked again when all are recorded."""
    record, recorded = Recording.record, []
    replay = Recording.replay

    def counted(self, feeds):
        recorded.append(self)
        return record(self, feeds)

    def broken(self, feeds):
        outputs = replay(self, feeds)
        return {n: a * np.nan for n, a in outputs.items()} if recorded[0] is self and len(recorded) > 1 else outputs

    monkeypatch.setattr(Recording, "record", counted)
    monkeypatch.setattr(Recording, "replay", broken)
    graphs, spoilt, path = tried(tmp_path, *models.mlp())
    assert [bool(graph.reason) for graph in graphs] == [True, False, False]
    assert spoilt
    assert not (path / "graph-0.onnx").exists()
    assert (path / "graph-1.onnx").exists()


def test_what_onnx_runtime_refuses_is_said_and_spoils_nothing(tmp_path, monkeypatch):
    create = sessions.create_session

    def refuse(model, options, config, without=()):
        if without:
            return create(model, options, config, without)
        raise RuntimeError("This session cannot use the graph capture feature as requested by the user")

    monkeypatch.setattr(recording, "create_session", refuse)
    graphs, spoilt, path = tried(tmp_path, *models.mlp())
    assert reasons(graphs) == "This session cannot use the graph capture feature as requested by the user"
    assert not spoilt
    assert not list(path.glob("graph-*"))


@pytest.mark.parametrize("name", ["Cpu", "CudaPinned", "CUDA_CPU"])
def test_an_input_that_is_read_on_the_host_is_refused(name):
    """Nothing of the host is replayed."""
    session = SimpleNamespace(
        get_inputs=lambda: [SimpleNamespace(name="k", shape=[1])],
        get_input_memory_infos=lambda: [SimpleNamespace(name=name)],
    )
    cuda = replace(CONFIG, provider=replace(CONFIG.provider, execution_provider="CUDAExecutionProvider"))
    recording._check_inputs(session, {"k": (1,)}, CONFIG)
    with pytest.raises(BundleError, match="input 'k' is read on the host"):
        recording._check_inputs(session, {"k": (1,)}, cuda)
    with pytest.raises(BundleError, match="input 'k' could not be fixed"):
        recording._check_inputs(session, {"k": (2,)}, CONFIG)


def test_too_few_different_inputs_prove_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("app.backends.graph_trial._variations", lambda found: found[:1])
    assert reasons(tried(tmp_path, *models.mlp())[0]) == f"no {LEAST_INPUTS} different inputs are known to try it with"


def test_a_fixed_graph_computes_no_shapes_and_copies_nothing_to_the_host(tmp_path):
    """Either would leave nodes to the host, with which nothing can be recorded."""
    nodes = [
        models.node("MatMul", ["x", "w"], ["m"]),
        models.node("MemcpyToHost", ["m"], ["h"]),
        models.node("Shape", ["h"], ["s"]),
        models.node("ConstantOfShape", ["s"], ["z"]),
        models.node("MemcpyFromHost", ["h"], ["d"]),
        models.node("Add", ["d", "z"], ["y"]),
    ]
    inputs, outputs = [models.value("x", models.FLOAT, ["n", 33])], [models.value("y", models.FLOAT, ["n", 33])]
    graph = onnx.helper.make_graph(nodes, "graph", [*inputs, models.value("w", models.FLOAT, [33, 33])], outputs)
    built = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    described = models.spec([TensorSpec("x", "FP32", (-1, 33), 0)], [TensorSpec("y", "FP32", (-1, 33), 0)])
    entry = StoredEntry("bound", optimised=True, weight_bytes=1, layout=name_axes(built, described, tmp_path))
    write_fixed(built, entry, CONFIG, "default", 4, tmp_path / "fixed.onnx")
    fixed = read_graph(tmp_path / "fixed.onnx").graph
    assert {node.op_type for node in fixed.node} <= {"MatMul", "Add"}
    assert [dim.dim_value for dim in fixed.input[0].type.tensor_type.shape.dim] == [4, 33]
    assert built.graph.node[1].op_type == "MemcpyToHost"  # the entry's graph is left as it is


def test_kernels_stay_what_they_are_in_the_plain_session(tmp_path):
    """Other ones round differently, which is more than a proof forgives where FP32 is multiplied to three digits."""
    built, described = models.mlp()
    path, entry = written(tmp_path, built, described)
    write_fixed(read_graph(path / "model.onnx"), entry, CONFIG, "default", 4, path / "fixed.onnx")
    kinds = [[node.op_type for node in read_graph(path / name).graph.node] for name in ("model.onnx", "fixed.onnx")]
    assert kinds[0] == kinds[1]


def test_shapes_are_those_of_the_variant_and_the_size():
    described = models.convolutions()[1]
    assert fixed_shapes(described, "12x8", 2) == {"x": (2, 3, 12, 8)}


# the compiler and its child


@pytest.fixture
def compile_with(tmp_path, monkeypatch):
    """Compile the MLP with a child that misbehaves in the given way; the compiler is closed in the end."""
    compilers = []

    def compile_with(misbehaviour=None):
        monkeypatch.setenv("MISBEHAVIOUR", misbehaviour or "")
        child = "tests.backends.children" if misbehaviour else CHILD_MODULE
        compilers.append(Compiler(tmp_path / "cache", CONFIG, child))
        built, described = models.mlp()
        return compilers[-1].compile(models.save(tmp_path, built), described), compilers[-1]

    yield compile_with
    for compiler in compilers:
        compiler.close()


def serves(tmp_path, entry):
    built, described = models.mlp()
    backend = bound_on_cpu(tmp_path / "cache")
    model = backend.prepare(entry, described).load()
    assert_close(model.run("default", 1, models.inputs_for(described, 1)), {"y": plain(built, described)})
    model.unload()
    backend.close()


def plain(built, described):
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, models.inputs_for(described, 1))[0]


def test_what_was_found_is_in_the_entry_when_it_is_read_again(compile_with):
    made, compiler = compile_with()
    described = models.mlp()[1]
    found = compiler.compile(made.path.parents[2] / "model.onnx", described)
    assert (made.made, found.made) == (True, False)
    assert found.graphs == made.graphs
    assert [graph.reason for graph in found.graphs] == [""] * 3


def test_a_child_that_dies_recording_leaves_a_proved_entry(compile_with, tmp_path, caplog):
    entry, _ = compile_with("die_recording")
    assert (entry.form, entry.reason) == ("bound", "")
    assert [(graph.variant, graph.size) for graph in entry.graphs] == [("default", 1), ("default", 2), ("default", 10)]
    assert "died of SIGSEGV" in reasons(entry.graphs)
    assert entry.replayed == {}
    assert not list(entry.path.glob("graph-*"))
    assert "CUDA graphs are not used: the compile child died of SIGSEGV" in caplog.text
    serves(tmp_path, entry)


@pytest.mark.parametrize(("deaths", "proved"), [(2, True), (3, False)])
def test_a_child_that_is_killed_from_outside_records_again_a_few_times(
    compile_with, tmp_path, monkeypatch, deaths, proved
):
    monkeypatch.setenv("KILLED", str(tmp_path / "killed"))
    monkeypatch.setenv("DEATHS", str(deaths))
    entry, _ = compile_with("be_killed_recording")
    assert bool(entry.replayed) is False or proved
    assert (reasons(entry.graphs) == "") is proved
    assert entry.form == "bound"


def test_a_child_in_which_a_recording_failed_is_used_no_more(compile_with):
    entry, compiler = compile_with("spoil_recording")
    assert "906" in reasons(entry.graphs)
    process = compiler._child._process
    assert process.wait(timeout=60) == -signal.SIGKILL  # it was not left to end by itself


def test_how_such_a_child_ends_says_nothing_of_the_next_model(compile_with, tmp_path):
    _, compiler = compile_with("spoil_recording_and_crash_in_the_end")
    (tmp_path / "other").mkdir()
    built, described = models.mlp(sizes=(1, 3))
    entry = compiler.compile(models.save(tmp_path / "other", built), described)
    assert (entry.form, entry.reason) == ("bound", "")


def test_compiling_that_is_stopped_publishes_nothing_without_its_graphs(compile_with, tmp_path, monkeypatch):
    ask = Compiler._ask

    def stop(self, **job):
        if job["job"] == "try_graphs":
            self.close()
        return ask(self, **job)

    monkeypatch.setattr(Compiler, "_ask", stop)
    with pytest.raises(BundleError, match="compiling was stopped"):
        compile_with()
    assert not list((tmp_path / "cache").glob("entries/*"))
