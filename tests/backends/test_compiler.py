"""Compiling: once, in a child, into an entry that is proved; and what happens when the child or the model is bad."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from app import backends
from app.backends.align import ALIGNMENT
from app.backends.cache import CompileCache
from app.backends.child import ANSWER_SECONDS
from app.backends.compiler import Compiler
from app.backends.graph import read_graph, walk_tensors
from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig
from app.domain.batch_safety import BatchCheck
from app.domain.config import RuntimeConfig
from app.domain.errors import BundleError
from app.domain.model import Variant
from app.domain.tensors import TensorSpec
from app.runtime.warmup import shapes
from tests.backends import models
from tests.backends.conformance import assert_close

ROOT = Path(__file__).parents[2]

CPU = SessionConfig(PROVIDERS["cpu"], 0, 1)


@pytest.fixture
def compiler(tmp_path):
    compiler = Compiler(tmp_path / "cache", CPU)
    yield compiler
    compiler.close()


@pytest.fixture
def misbehaving(tmp_path, monkeypatch):
    """A compiler whose child misbehaves in the given way."""
    compilers = []

    def make(misbehaviour, answer_seconds=ANSWER_SECONDS):
        monkeypatch.setenv("MISBEHAVIOUR", misbehaviour)
        compilers.append(Compiler(tmp_path / "cache", CPU, "tests.backends.children", answer_seconds))
        return compilers[-1]

    yield make
    for compiler in compilers:
        compiler.close()


@pytest.fixture
def no_child(monkeypatch):
    """From the call on, no child can be started."""
    return lambda: monkeypatch.setattr(sys, "executable", "/nonexistent")


def offsets(entry):
    """Where the blocks of an entry begin, packed ones included."""
    found = []
    for tensor in walk_tensors(read_graph(entry.path / "model.onnx")):
        for item in tensor.external_data:
            if item.key == "offset":
                found.append(int(item.value))
            elif item.key.startswith("prepacked"):
                found += [int(block.split(";")[0]) for block in item.value.split("|")[1:]]
    return found


SHARING = [
    models.mlp,
    models.convolutions,
    models.recurrent,
    models.subgraphs,
    models.one_weight_two_kernels,
    models.no_batch,
    models.brain_float,
]


@pytest.mark.parametrize("make", SHARING)
def test_weights_are_packed_aligned_and_proved(compiler, tmp_path, make):
    built, described = make()
    entry = compiler.compile(models.save(tmp_path, built), described)
    assert (entry.form, entry.reason) == ("prepacked", "")
    assert entry.weight_bytes == (entry.path / "weights.bin").stat().st_size
    assert offsets(entry)
    assert all(offset % ALIGNMENT == 0 for offset in offsets(entry))


@pytest.mark.parametrize("make", [models.tiny, models.text])
def test_a_model_without_large_initializers_is_plain_and_says_why(compiler, tmp_path, make):
    built, described = make()
    entry = compiler.compile(models.save(tmp_path, built), described)
    assert (entry.form, entry.reason) == ("plain", "it has no large initializers to share")


@pytest.mark.parametrize("make", [models.mlp, models.recurrent])
def test_what_kills_the_child_is_never_mapped(misbehaving, tmp_path, make):
    built, described = make()
    entry = misbehaving("leave_unaligned").compile(models.save(tmp_path, built), described)
    assert entry.form in ("external", "plain")
    assert "not prepacked: the compile child died of SIG" in entry.reason
    backend = backends.create(RuntimeConfig(backend="cpu"), tmp_path / "cache")
    inputs = models.inputs_for(described, 2)
    model = backend.prepare(entry, described).load()
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_close(model.run("default", 2, inputs), {"y": session.run(["y"], inputs)[0]})


def test_a_second_compilation_starts_no_child(compiler, tmp_path, no_child):
    built, described = models.mlp()
    file = models.save(tmp_path, built)
    entry = compiler.compile(file, described)
    no_child()
    assert compiler.compile(file, described) == entry
    assert Compiler(tmp_path / "cache", CPU).compile(file, described) == entry


def test_what_was_measured_of_its_rows_is_kept_with_the_entry(compiler, tmp_path, no_child):
    built, described = models.quantised()
    file = models.save(tmp_path, built)
    probe = compiler.compile(file, described).batch_probe
    assert probe.quantised
    assert {each.output for each in probe.deviations} == {"y"}
    no_child()
    checked = models.spec(described.inputs, described.outputs, (1, 2, 8), batch_check=BatchCheck("warn", 0.5))
    assert compiler.compile(file, checked).batch_probe == probe


def test_what_no_number_tells_is_kept_too(compiler, tmp_path, no_child):
    built, described = models.poisoned_by_zeros()
    file = models.save(tmp_path, built)
    probe = compiler.compile(file, described).batch_probe
    assert {each.difference for each in probe.deviations} == {inf}
    no_child()
    assert compiler.compile(file, described).batch_probe == probe


def test_why_nothing_could_be_measured_is_kept_too(compiler, tmp_path):
    built, described = three_only()
    assert "Reshape" in compiler.compile(models.save(tmp_path, built), described).batch_probe.failure


def test_the_same_model_elsewhere_and_under_another_name_is_the_same_entry(compiler, tmp_path, no_child):
    built, described = models.mlp()
    entry = compiler.compile(models.save(tmp_path / "a", built), described)
    no_child()
    renamed = models.spec(described.inputs, described.outputs, (1, 2, 10), name="other", description="new")
    assert compiler.compile(models.save(tmp_path / "b", built, "other.onnx"), renamed) == entry


def test_other_sizes_variants_or_weights_are_other_entries(compiler, tmp_path):
    built, described = models.mlp()
    entries = {compiler.compile(models.save(tmp_path / "a", built), described).path}
    entries.add(compiler.compile(tmp_path / "a" / "model.onnx", models.mlp(sizes=(1, 3))[1]).path)
    built.graph.initializer[0].CopyFrom(models.weights("w0", 33, 65))
    built.graph.initializer[0].raw_data = bytes(33 * 65 * 4)
    entries.add(compiler.compile(models.save(tmp_path / "b", built), described).path)
    assert len(entries) == 3


@pytest.mark.parametrize("damage", ["truncate", "replace", "remove"])
def test_a_damaged_entry_is_made_again(compiler, tmp_path, damage):
    built, described = models.mlp()
    file = models.save(tmp_path, built)
    entry = compiler.compile(file, described)
    weights = entry.path / "weights.bin"
    whole = weights.read_bytes()
    if damage == "truncate":
        os.truncate(weights, 100)
    elif damage == "replace":
        weights.write_bytes(bytes(len(whole)))
    else:
        weights.unlink()
    again = compiler.compile(file, described)
    assert replace(again, scratch_bytes=entry.scratch_bytes) == entry  # measured anew: a page more or less
    assert weights.read_bytes() == whole


RACER = """
import sys
from pathlib import Path
from app.backends.compiler import Compiler
from tests.backends import models
from tests.backends.test_compiler import CPU
compiler = Compiler(Path(sys.argv[1]), CPU)
print("ready", flush=True)
sys.stdin.readline()
entry = compiler.compile(Path(sys.argv[2]), models.mlp()[1])
compiler.close()
print(entry.form, entry.path)
"""


def test_two_processes_that_compile_the_same_model_get_one_whole_entry(tmp_path):
    file = models.save(tmp_path, models.mlp()[0])
    command = [sys.executable, "-c", RACER, str(tmp_path / "cache"), str(file)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate()[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert answers[0] == answers[1]
    assert answers[0][0] == "prepacked"
    entries = list((tmp_path / "cache" / "entries").iterdir())
    assert [str(path) for path in entries] == [answers[0][1]]
    assert CompileCache(tmp_path / "cache").open(entries[0].name) is not None
    assert list((tmp_path / "cache" / "scratch").iterdir()) == []


def save_external(folder, built):
    folder.mkdir()
    file = folder / "model.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(built)
    onnx.save_model(copy, str(file), save_as_external_data=True, location="data.bin", size_threshold=100)
    return file


def test_external_data_is_found_beside_the_model_and_is_part_of_its_key(compiler, tmp_path):
    built, described = models.mlp()
    file = save_external(tmp_path / "bundle", built)
    entry = compiler.compile(file, described)
    assert entry.form == "prepacked"
    data = file.parent / "data.bin"
    data.write_bytes(bytes(data.stat().st_size))
    changed = compiler.compile(file, described)
    assert changed.path != entry.path
    backend = backends.create(RuntimeConfig(backend="cpu"), tmp_path / "cache")
    inputs = models.inputs_for(described, 2)
    assert not backend.prepare(changed, described).load().run("default", 2, inputs)["y"].any()
    assert backend.prepare(entry, described).load().run("default", 2, inputs)["y"].any()


def test_missing_external_data_is_a_bundle_error(compiler, tmp_path):
    built, described = models.mlp()
    file = save_external(tmp_path / "bundle", built)
    (file.parent / "data.bin").unlink()
    with pytest.raises(BundleError, match=r"model\.onnx.*data\.bin"):
        compiler.compile(file, described)


@pytest.mark.parametrize(
    ("job", "replaced"), [("external_files", "model.onnx"), ("compile", "model.onnx"), ("compile", "data.bin")]
)
def test_what_is_replaced_while_it_is_compiled_is_refused_and_not_kept(
    compiler, misbehaving, tmp_path, monkeypatch, job, replaced
):
    built, described = models.mlp()
    file = save_external(tmp_path / "bundle", built)
    place, data = file.parent / replaced, file.parent / "data.bin"
    original = place.read_bytes()
    replacement = models.save(tmp_path, built, "inside.onnx")  # without external data
    if place == data:
        replacement.write_bytes(bytes(len(original)))
    for variable, value in {"JOB": job, "REPLACEMENT": replacement, "REPLACED": place}.items():
        monkeypatch.setenv(variable, str(value))
    with pytest.raises(BundleError, match=r"model\.onnx: changed while it was compiled; it will be looked at again"):
        misbehaving("meet_another_file").compile(file, described)
    place.write_bytes(original)
    entry = compiler.compile(file, described)
    backend = backends.create(RuntimeConfig(backend="cpu"), tmp_path / "cache")
    assert backend.prepare(entry, described).load().run("default", 2, models.inputs_for(described, 2))["y"].any()
    data.write_bytes(bytes(data.stat().st_size))
    assert compiler.compile(file, described).path != entry.path


def three_only():
    """The free axis has to be 3, which no probe can know."""
    nodes = [models.node("Reshape", ["x", "shape"], ["r"]), models.node("MatMul", ["r", "w"], ["y"])]
    initializers = [models.weights("w", 3, 300), models.constant("shape", [0, 3])]
    inputs, outputs = [models.value("x", models.FLOAT, ["n", "t"])], [models.value("y", models.FLOAT, ["n", 300])]
    specs = [TensorSpec("x", "FP32", (-1, -1), 0)], [TensorSpec("y", "FP32", (-1, 300), 0)]
    return models.model(nodes, inputs, outputs, initializers), models.spec(*specs)


def test_the_original_is_kept_where_no_probe_runs(compiler, tmp_path):
    built, described = three_only()
    entry = compiler.compile(models.save(tmp_path, built), described)
    assert entry.form == "plain"
    assert "not prepacked: no probe runs variant 'default'" in entry.reason
    assert "not external" not in entry.reason  # which would be written out for nothing
    backend = backends.create(RuntimeConfig(backend="cpu"), tmp_path / "cache")
    model = backend.prepare(entry, described).load()
    assert model.run("default", 2, {"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 300)


def test_the_sample_of_the_bundle_is_a_probe(compiler, tmp_path):
    built, described = three_only()
    sample = {"x": np.ones((2, 3), np.float32)}
    assert compiler.compile(models.save(tmp_path, built), described, sample).form == "prepacked"


def test_a_sample_that_comes_later_is_tried(compiler, tmp_path):
    built, described = three_only()
    file = models.save(tmp_path, built)
    assert compiler.compile(file, described).form == "plain"
    assert compiler.compile(file, described, {"x": np.ones((1, 3), np.float32)}).form == "prepacked"


def numbers_in_text():
    """Parses its input, and takes no text that is no number."""
    nodes = [models.node("Cast", ["file"], ["c"], to=models.FLOAT), models.node("MatMul", ["c", "w"], ["y"])]
    inputs, outputs = [models.value("file", models.STRING, ["n", 3])], [models.value("y", models.FLOAT, ["n", 300])]
    specs = [TensorSpec("file", "BYTES", (-1, 3), 0)], [TensorSpec("y", "FP32", (-1, 300), 0)]
    return models.model(nodes, inputs, outputs, [models.weights("w", 3, 300)]), models.spec(*specs)


def test_a_sample_may_be_text(compiler, tmp_path):
    built, described = numbers_in_text()
    file = models.save(tmp_path, built)
    assert compiler.compile(file, described).form == "plain"
    sample = {"file": np.array([[b"1.5", b"-2", b"12"]], np.object_)}
    assert compiler.compile(file, described, sample).form == "prepacked"


def test_a_size_that_the_graph_cannot_run_is_refused_with_the_remedy(compiler, tmp_path):
    file = models.save(tmp_path, models.fixed_inside()[0])
    with pytest.raises(BundleError, match=r"model\.onnx.*batch size 2.*compiled_batch_sizes"):
        compiler.compile(file, models.fixed_inside()[1])
    assert compiler.compile(file, models.fixed_inside(sizes=(1,))[1]).form == "prepacked"


def test_a_model_that_is_not_batched_runs_at_the_rows_that_it_can(compiler, tmp_path):
    built, described = models.fixed_inside()
    described = models.spec(described.inputs, described.outputs, (1, 2), batching=False)
    assert compiler.compile(models.save(tmp_path, built), described).form == "prepacked"


def test_variants_may_need_extents_that_others_do_not(compiler, tmp_path):
    built, described = models.convolutions()
    variants = [Variant("small", (1,), {("x", 2): 8, ("x", 3): 8}), Variant("large", (3,), {("x", 2): 40, ("x", 3): 9})]
    described = models.spec(described.inputs, described.outputs, variants=variants)
    assert compiler.compile(models.save(tmp_path, built), described).form == "prepacked"


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_a_file_that_is_no_model_is_refused_by_name(compiler, tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=r"model\.onnx: not a readable ONNX model"):
        compiler.compile(tmp_path / "model.onnx", models.mlp()[1])


def test_a_file_that_is_not_there_is_refused_by_name(compiler, tmp_path):
    with pytest.raises(BundleError, match=r"absent\.onnx"):
        compiler.compile(tmp_path / "absent.onnx", models.mlp()[1])


def test_an_operator_that_nobody_knows_is_refused_in_onnx_runtimes_words(compiler, tmp_path):
    built, described = models.mlp()
    built.graph.node[0].op_type = "Teleport"
    (tmp_path / "model.onnx").write_bytes(built.SerializeToString())
    with pytest.raises(BundleError, match=r"model\.onnx: ONNX Runtime cannot run it: .*Teleport"):
        compiler.compile(tmp_path / "model.onnx", described)


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(tmp_path):
    (tmp_path / "cache").write_text("a file")
    built, described = models.mlp()
    compiler = Compiler(tmp_path / "cache", CPU)
    with pytest.raises(BundleError, match=r"cannot be compiled.*cache"):
        compiler.compile(models.save(tmp_path, built), described)
    compiler.close()


def test_a_child_that_went_idle_is_replaced(misbehaving, tmp_path):
    built, described = models.mlp()
    assert misbehaving("answer_once").compile(models.save(tmp_path, built), described).form == "prepacked"


@pytest.mark.parametrize(
    ("misbehaviour", "words"),
    [("die", r"ended with status 1 \(no libraries here\)"), ("quit_at_once", "does not stay")],
)
def test_a_child_that_cannot_work_is_an_error_with_its_last_words(misbehaving, tmp_path, misbehaviour, words):
    built, described = models.mlp()
    with pytest.raises(BundleError, match=words):
        misbehaving(misbehaviour).compile(models.save(tmp_path, built), described)


def test_a_child_that_is_killed_condemns_no_form(misbehaving, compiler, tmp_path):
    built, described = models.mlp()
    file = models.save(tmp_path, built)
    compiler.compile(file, models.mlp(sizes=(7,))[1])  # the file is known: what is killed below is the compilation
    with pytest.raises(BundleError, match=r"model\.onnx.*SIGKILL, as when memory is short: attempt 3 of 3"):
        misbehaving("be_killed").compile(file, described)
    assert compiler.compile(file, described).form == "prepacked"


@pytest.mark.parametrize(("killed", "attempts"), [(2, 3), (3, 3), (9, 3)])
def test_a_child_that_is_killed_is_followed_by_another_so_often(misbehaving, tmp_path, monkeypatch, killed, attempts):
    """The first job of a new file is to list its external data, the second to compile it: either may be killed."""
    monkeypatch.setenv("KILLED", str(tmp_path / "killed"))
    monkeypatch.setenv("DEATHS", str(killed))
    built, described = models.mlp()
    compiler = misbehaving("be_killed_so_often")
    file = models.save(tmp_path, built)
    if killed < attempts:
        assert compiler.compile(file, described).form == "prepacked"
    else:
        with pytest.raises(BundleError, match="SIGKILL"):
            compiler.compile(file, described)
    assert (tmp_path / "killed").stat().st_size == min(killed, attempts)


def test_the_child_is_nice_and_out_of_reach_of_the_terminal(compiler, tmp_path):
    """A session of its own would be out of reach too, but there niceness counts for nothing."""
    built, described = models.mlp()
    compiler.compile(models.save(tmp_path, built), described)
    child = compiler._child._process.pid
    assert os.getpgid(child) == child
    assert os.getsid(child) == os.getsid(0)
    assert os.getpriority(os.PRIO_PROCESS, child) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)


def test_closing_ends_a_compilation_that_is_under_way(misbehaving, tmp_path, monkeypatch):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    monkeypatch.setenv("READY", str(ready))
    built, described = models.mlp()
    compiler = misbehaving("hang")
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(compiler.compile, models.save(tmp_path, built), described)
        assert ready.read_text() == "ready"
        compiler.close()
        with pytest.raises(BundleError, match="stopped"):
            compiling.result()


def test_closing_while_the_child_starts_ends_it(compiler, tmp_path, monkeypatch):
    class Slow(subprocess.Popen[str]):
        """While it starts, the compiler is closed."""

        def __init__(self, *arguments, **options):
            compiler.close()
            super().__init__(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    built, described = models.mlp()
    with pytest.raises(BundleError, match="stopped"):
        compiler.compile(models.save(tmp_path, built), described)


def test_a_child_that_hangs_is_ended(misbehaving, tmp_path, monkeypatch):
    ready = tmp_path / "ready"
    monkeypatch.setenv("READY", str(ready))
    built, described = models.mlp()
    with pytest.raises(BundleError, match=r"model\.onnx: .*the compile child was ended: no answer in 0\.01 s"):
        misbehaving("hang", 0.01).compile(models.save(tmp_path, built), described)


def test_nothing_is_compiled_after_closing(compiler, tmp_path):
    built, described = models.mlp()
    compiler.close()
    compiler.close()
    with pytest.raises(BundleError, match="stopped"):
        compiler.compile(models.save(tmp_path, built), described)


def test_only_runs_of_known_extent_are_called_quick(compiler, tmp_path):
    built, described = models.recurrent()
    entry = compiler.compile(models.save(tmp_path, built), described)
    runs = json.loads((entry.path / "entry.json").read_text())["runs"]
    assert runs
    assert not any(run["quick"] for run in runs)


@pytest.mark.parametrize("sizes", [(1, 2, 10), (2,), ()])
def test_the_entry_tells_what_every_run_of_a_warm_up_took_when_it_was_proved(compiler, tmp_path, sizes):
    built, described = models.mlp(sizes=sizes)
    entry = compiler.compile(models.save(tmp_path, built), described)
    assert list(entry.warm) == list(shapes(described))
    assert min(entry.warm.values()) > 0


def test_the_entry_describes_itself(compiler, tmp_path):
    built, described = models.convolutions()
    entry = compiler.compile(models.save(tmp_path, built), described)
    manifest = json.loads((entry.path / "entry.json").read_text())
    assert manifest["dims"] == {"8x8": {"h": 8, "w": 8}, "12x8": {"h": 12, "w": 8}}
    assert manifest["batch_names"] == ["n"]
    assert set(manifest["files"]) == {"model.onnx", "weights.bin"}


@pytest.mark.parametrize(("serving", "compiling"), [(1, "1"), (2, "1"), (5, "2"), (16, "8")])
def test_the_child_leaves_half_the_cores_to_serving(tmp_path, monkeypatch, serving, compiling):
    monkeypatch.setenv("MISBEHAVIOUR", "tell_threads")
    compiler = Compiler(tmp_path, SessionConfig(PROVIDERS["cpu"], 0, serving), "tests.backends.children")
    assert compiler.try_device() == compiling
    compiler.close()
