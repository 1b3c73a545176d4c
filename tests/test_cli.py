"""The commands besides `serve`: what they print, what they leave behind, and their exit status."""

import os
import pty
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.api import terminal
from app.backends.base import CacheEntry
from app.backends.entry import StoredGraph
from app.cli import main
from app.repository.bundle import load_bundle
from app.runtime.trial import Compiled, Execution
from tests.backends import models
from tests.builders import write_identity_bundle, write_meta_bundle
from tests.e2e.conftest import free_port, running

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Settings of a node of its own, in `tmp_path`."""
    for name in [name for name in os.environ if name.startswith("INFERENCE_SERVER_")]:
        monkeypatch.delenv(name)
    (tmp_path / "bundles").mkdir()
    monkeypatch.setenv("INFERENCE_SERVER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("INFERENCE_SERVER_MODEL_DIRS", str(tmp_path / "bundles"))
    monkeypatch.setenv("INFERENCE_SERVER_RUNTIME_BACKEND", "cpu")
    return tmp_path


LISTENS = "Uvicorn running"


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit status, standard output, standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        # A message in place of a status is printed by the interpreter, which then exits with 1.
        return (1, out, err + ended.value.code) if isinstance(ended.value.code, str) else (ended.value.code, out, err)

    return run


def rows(out):
    """The cells of a table's rows."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]


def save_external(folder, built, location="weights/data.bin"):
    """A model whose weights lie in a file of their own."""
    (folder / location).parent.mkdir(parents=True)
    file = folder / "original.onnx"
    onnx.save_model(models.copy(built), str(file), save_as_external_data=True, location=location, size_threshold=100)
    return file


def break_model(path):
    (path / "model.onnx").write_bytes(b"junk")


# compile


def test_compile_fills_the_cache_for_all_bundles_and_the_next_start_compiles_nothing(run, place):
    for name in "ab":
        write_identity_bundle(place / "bundles", name)
    models.save(place / "bundles" / "c", models.mlp()[0])
    code, out, err = run("compile")
    assert code == 0
    assert [(row[0], row[1], row[4], row[6]) for row in rows(out)] == [
        ("a", "plain", "safe", "compiled"),
        ("b", "plain", "safe", "cached"),  # the same model
        ("c", "prepacked", "safe", "compiled"),
    ]
    assert err.splitlines() == ["[1/3] compiling a", "[2/3] compiling b", "[3/3] compiling c"]
    assert [row[-1] for row in rows(run("compile")[1])] == ["cached"] * 3


def test_compile_takes_bundles_and_directories_of_them_and_what_the_settings_include(run, place, monkeypatch):
    elsewhere = place / "elsewhere"
    for root, name in ((place / "bundles", "a"), (place / "bundles", "b"), (elsewhere, "c"), (elsewhere, "d")):
        write_identity_bundle(root, name)
    monkeypatch.setenv("INFERENCE_SERVER_MODELS_INCLUDE", "b*")
    assert [row[0] for row in rows(run("compile")[1])] == ["b"]
    assert [row[0] for row in rows(run("compile", elsewhere, place / "bundles" / "a")[1])] == ["a", "c", "d"]


def test_compile_does_the_others_and_tells_each_failure_in_a_line(run, place):
    for name in ("bad", "good", "worse"):
        write_identity_bundle(place / "bundles", name)
    break_model(place / "bundles" / "bad")
    (place / "bundles" / "worse" / "manifest.yaml").write_text("format_version: '1'\nbatchign: {}\n")
    code, out, err = run("compile")
    assert code == 1
    assert [row[0] for row in rows(out)] == ["good"]
    bad, worse = [line for line in err.splitlines() if line.startswith("error: ")]
    assert bad.startswith(f"error: bad: {place}/bundles/bad/model.onnx: not an ONNX file")
    assert worse.startswith(f"error: worse: {place}/bundles/worse/manifest.yaml: batchign: unknown key: remove it")


def test_compile_of_what_is_not_there_is_an_error(run, place):
    code, _, err = run("compile", place / "absent")
    assert (code, err) == (1, f"error: {place}/absent: is no directory: name a bundle, or what holds bundles\n")


def test_compile_obeys_the_policy_that_serve_would(run, place, monkeypatch):
    models.save(place / "bundles" / "m", models.poisoned_by_zeros()[0])
    assert rows(run("compile")[1])[0][4] == "unsafe"
    monkeypatch.setenv("INFERENCE_SERVER_SCHEDULER_MODELS", '{"m": {"padding": "repeat"}}')
    assert rows(run("compile")[1])[0][4] == "safe"


def test_a_bad_setting_stops_every_command_and_is_named(run, place, monkeypatch):
    monkeypatch.setenv("INFERENCE_SERVER_RUNTIME_BACKEND", "abacus")
    for command in (["compile"], ["check", place], ["pack", place / "m.onnx", place / "m"], ["status"]):
        code, _, err = run(*command)
        assert code == 1
        assert "INFERENCE_SERVER_RUNTIME_BACKEND='abacus'" in err


def test_what_was_compiled_ahead_is_served_from_the_cache(run, place):
    models.save(place / "bundles" / "m", models.mlp()[0])
    run("compile")
    [entry] = (place / "cache" / "entries").iterdir()
    made = entry.stat()
    with running(place / "cache", place / "bundles", RUNTIME_BACKEND="cpu"):
        pass
    assert [path.stat() for path in (place / "cache" / "entries").iterdir()] == [made]


# check


def test_check_runs_every_variant_and_size_and_tells_what_they_cost(run, place):
    path = place / "bundles" / "m"
    models.save(path, models.convolutions()[0])
    (path / "manifest.yaml").write_text(
        'format_version: "1"\n'
        "executable_inputs: [{name: x, dtype: FP32, shape: nchw, dims: {c: 3, h: -1, w: -1}}]\n"
        "input_shapes: [{h: 8, w: 8}, {h: 12, w: 8}]\n"
        "batching: {compiled_batch_sizes: [1, 4]}\n"
    )
    code, out, err = run("check", path)
    assert (code, err) == (0, "[1/1] checking m\n")
    assert out.startswith("m: prepacked weights of ")
    assert "batches safe" in out.splitlines()[0]
    assert [row[:2] for row in rows(out)] == [["h=8,w=8", "1"], ["h=8,w=8", "4"], ["h=12,w=8", "1"], ["h=12,w=8", "4"]]
    assert all(cell.split()[-1] in ("s", "ms", "µs") for row in rows(out) for cell in row[2:4])
    assert all(row[4].endswith("B") for row in rows(out))


def test_check_tells_which_sizes_are_replayed_and_why_the_others_are_not(place, capsys):
    write_identity_bundle(place, "m")
    graphs = (StoredGraph("default", 1), StoredGraph("default", 2, "axis 1 of input 'x' is free"))
    found = Compiled(load_bundle(place / "m"), CacheEntry(place, "bound", 1000, graphs=graphs), 1.0)
    terminal.console().print(terminal.check_table(found, [Execution("default", size, 1.0) for size in (1, 2, 4)]))
    assert [row[-1] for row in rows(capsys.readouterr().out)] == ["replayed", "axis 1 of input 'x' is free", ""]


def test_check_warns_of_batches_that_are_none_and_passes(run, place):
    models.save(place / "bundles" / "m", models.running_sum()[0])
    code, out, err = run("check", place / "bundles" / "m")
    assert code == 0
    assert [row[:2] for row in rows(out)] == [["default", "any"]]
    assert "warning: m: its batches are unsafe: output 'y' of a row changes by" in err


def test_check_and_pack_say_why_requests_run_alone_and_what_to_do(run, place):
    file = models.save(place, models.no_batch()[0], "original.onnx")
    told = "warning: m: its requests run alone: output 'y' has no batch axis; if rows are independent, export it with"
    code, _, err = run("pack", file, place / "bundles" / "m")
    assert (code, told in err) == (0, True)
    code, out, err = run("check", place / "bundles" / "m")
    assert (code, "batches alone" in out, told in err) == (0, True, True)
    manifest = place / "bundles" / "m" / "manifest.yaml"
    manifest.write_text(f"{manifest.read_text()}\nbatching: {{enabled: false}}\n")
    code, out, err = run("check", place / "bundles" / "m")
    assert (code, "batches alone" in out, "warning" in err) == (0, True, False)


def test_check_takes_directories_of_bundles(run, place):
    for name in "ba":
        write_identity_bundle(place / "bundles", name)
    code, _, err = run("check", place / "bundles", place / "bundles" / "a")
    assert (code, err.splitlines()) == (0, ["[1/3] checking a", "[2/3] checking b", "[3/3] checking a"])


def test_compile_tells_of_what_it_passes_over(run, place):
    (place / "bundles" / "loose.onnx").touch()
    code, _, err = run("compile")
    assert (code, err.startswith(f"warning: {place}/bundles/loose.onnx: is no bundle")) == (0, True)


def test_the_version_is_told(run):
    code, out, _ = run("--version")
    assert (code, out) == (0, f"inference-server {version('inference-server')}\n")


def test_check_says_file_key_and_remedy_and_goes_on(run, place):
    bad = write_identity_bundle(place / "bundles", "bad", manifest="colour: red\n")
    good = write_identity_bundle(place / "bundles", "good")
    code, out, err = run("check", bad, good, place / "absent")
    assert code == 1
    assert out.startswith("good: plain weights of ")
    assert f"error: bad: {bad}/manifest.yaml: colour: unknown key: remove it" in err
    assert f"error: absent: {place}/absent: is no directory" in err


def test_check_names_the_file_that_lies_where_no_bundle_is(run, place):
    models.save(place / "resnet", models.mlp()[0], "resnet.onnx")
    code, _, err = run("check", place / "resnet")
    assert code == 1
    assert f"error: resnet: {place}/resnet: is no bundle: rename resnet.onnx to model.onnx" in err
    models.save(place / "dense" / "1", models.mlp()[0])
    code, _, err = run("check", place / "dense")
    assert (code, "error: dense: " in err, "as Triton lays it out" in err) == (1, True, True)


def test_check_refuses_a_model_that_does_not_run_on_its_own_sample(run, place):
    """The graph takes three columns only, which nothing but running it tells."""
    path = place / "bundles" / "m"
    nodes = [models.node("Reshape", ["x", "shape"], ["r"]), models.node("MatMul", ["r", "w"], ["y"])]
    initializers = [models.weights("w", 3, 300), models.constant("shape", [-1, 3])]
    inputs, outputs = [models.value("x", models.FLOAT, ["n", "t"])], [models.value("y", models.FLOAT, ["m", 300])]
    models.save(path, models.model(nodes, inputs, outputs, initializers))
    (path / "manifest.yaml").write_text('format_version: "1"\nbatching: {enabled: false}\n')
    code, _, err = run("check", path)
    assert code == 0
    assert "does not run at batch size 1" in err
    assert "a sample.npz in the bundle may help" in err
    np.savez(path / "sample.npz", x=np.ones((1, 4), np.float32))
    code, _, err = run("check", path)
    assert code == 1
    assert "error: m: variant 'default' does not run at batch size 1: " in err


def test_a_meta_model_has_nothing_to_compile_and_nothing_to_run(run, place):
    path = write_meta_bundle(place / "bundles")
    code, out, _ = run("compile")
    assert (code, rows(out)[0][:2], rows(out)[0][6]) == (0, ["meta", "meta"], "")
    code, out, err = run("check", path)
    assert (code, out, "error" in err) == (0, "meta: a meta model, calls no other\n", False)


def test_a_bundle_that_a_meta_model_calls_lies_beside_it_or_is_served(run, place):
    """A model directory of its own is looked at as well, since that is what the server would do."""
    path = write_meta_bundle(place / "elsewhere", calls=["m"])
    code, _, err = run("check", path)
    assert (code, err.count("error")) == (1, 1)
    assert "error: meta: calls 'm', a bundle that lies neither beside it nor in MODEL_DIRS" in " ".join(err.split())
    for where in ("bundles", "elsewhere"):
        bundle = write_identity_bundle(place / where, "m")
        code, _, err = run("check", path)
        assert (code, "error" in err) == (0, False)
        shutil.rmtree(bundle)


# pack


@pytest.mark.parametrize(
    "make",
    [
        models.mlp, models.convolutions, models.recurrent, models.two_names, models.one_name_twice, models.text,
        models.brain_float_and_text, models.no_batch, models.subgraphs, models.tiny, models.fixed_inside,
        models.running_sum, models.reduced,
    ],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_what_pack_writes_passes_check_and_says_what_the_graph_says(run, place, make):
    file = models.save(place, make()[0], "original.onnx")
    bare = place / "bare"
    bare.mkdir()
    (bare / "model.onnx").write_bytes(file.read_bytes())
    target = place / "bundles" / "m"
    assert run("pack", file, target)[0] == 0
    code, _, err = run("check", target)
    assert (code, "error" in err) == (0, False)
    packed, plain = load_bundle(target).spec, load_bundle(bare).spec
    assert (packed.inputs, packed.outputs) == (plain.inputs, plain.outputs)
    assert sorted(path.name for path in target.iterdir()) == ["manifest.yaml", "model.onnx"]
    assert [path.name for path in (place / "bundles").iterdir()] == ["m"]


def test_a_model_that_runs_in_no_batch_is_packed_without_and_the_manifest_says_why(run, place):
    file = models.save(place, models.fixed_inside()[0], "original.onnx")
    target = place / "bundles" / "m"
    _, _, err = run("pack", file, target)
    text = (target / "manifest.yaml").read_text()
    assert "warning: m: its requests run alone, since a batch does not run: model.onnx" in err
    assert "batching: {enabled: false}" in text
    assert "cannot run at batch size" in text
    assert ".packing" not in text


def test_one_letter_stands_for_what_the_graph_calls_by_one_name(run, place):
    nodes = [models.node("Add", ["a", "b"], ["y"])]
    inputs = [models.value(name, models.FLOAT, ["n", "height", "helium", 3]) for name in "ab"]
    built = models.model(nodes, inputs, [models.value("y", models.FLOAT, ["n", "height", "helium", 3])])
    target = place / "bundles" / "m"
    run("pack", models.save(place, built, "original.onnx"), target)
    text = (target / "manifest.yaml").read_text()
    for name in "aby":
        assert f'name: "{name}", dtype: FP32, shape: "nhcd", dims: {{h: -1, c: -1, d: 3}}' in text
    assert "# input_shapes: [{c: 64, h: 64}]" in text
    (target / "manifest.yaml").write_text(text.replace("# input_shapes", "input_shapes"))
    assert run("check", target)[0] == 0


def test_names_may_be_anything(run, place):
    name = 'a: "b" {c}\n\x85 ü #'
    built = models.model(
        [models.node("Identity", [name], ["y"])],
        [models.value(name, models.FLOAT, ["n", 3])],
        [models.value("y", models.FLOAT, ["n", 3])],
    )
    target = place / "bundles" / "m"
    assert run("pack", models.save(place, built, "original.onnx"), target)[0] == 0
    assert load_bundle(target).spec.inputs[0].name == name


def test_pack_brings_external_data_along(run, place):
    target = place / "bundles" / "m"
    assert run("pack", save_external(place / "export", models.mlp()[0]), target)[0] == 0
    assert (target / "weights" / "data.bin").is_file()
    assert run("check", target)[0] == 0


@pytest.mark.parametrize("there", ["file", "bundle"])
def test_pack_overwrites_nothing(run, place, there):
    file = models.save(place, models.mlp()[0], "original.onnx")
    target = place / "bundles" / "m"
    if there == "file":
        target.write_text("mine")
    else:
        write_identity_bundle(place / "bundles", "m")
    before = {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()}
    code, _, err = run("pack", file, target)
    assert (code, "is there already: remove it" in err) == (1, True)
    assert {path: path.read_bytes() for path in before} == before


def test_pack_into_an_empty_directory_is_fine(run, place):
    target = place / "bundles" / "m"
    target.mkdir()
    assert run("pack", models.save(place, models.mlp()[0], "original.onnx"), target)[0] == 0


def corrupt(place):
    file = place / "original.onnx"
    file.write_bytes(b"junk")
    return file


def without_its_data(place):
    file = save_external(place / "export", models.mlp()[0])
    (file.parent / "weights" / "data.bin").unlink()
    return file


def of_an_unknown_operator(place):
    built = models.mlp()[0]
    built.graph.node[0].op_type = "Teleport"
    file = place / "original.onnx"
    file.write_bytes(built.SerializeToString())
    return file


def with_data_outside(place):
    file = save_external(place / "export", models.mlp()[0])
    built = onnx.load(str(file), load_external_data=False)
    for tensor in built.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../data.bin"
    file.write_bytes(built.SerializeToString())
    return file


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (corrupt, "original.onnx: not a readable ONNX model"),
        (without_its_data, "external data"),
        (of_an_unknown_operator, "original.onnx: ONNX Runtime cannot run it: "),
        (with_data_outside, "lies outside its folder"),
        (lambda place: place / "absent.onnx", "absent.onnx: there is no such file"),
    ],
    ids=["corrupt", "data missing", "operator missing", "data outside", "absent"],
)
def test_pack_leaves_nothing_behind_of_what_cannot_be_served(run, place, make, words):
    code, _, err = run("pack", make(place), place / "bundles" / "m")
    assert (code, len(err.splitlines()) <= 2) == (1, True)
    assert words in err
    assert list((place / "bundles").iterdir()) == []


def test_pack_wants_a_name_for_the_model(run, place):
    code, _, err = run("pack", models.save(place, models.mlp()[0], "original.onnx"), place / "no model name")
    assert (code, "is no model name" in err) == (1, True)
    assert not (place / "no model name").exists()


# status


def test_status_shows_every_model_once_where_nobody_watches(run, place, monkeypatch):
    write_identity_bundle(place / "bundles", "good")
    break_model(write_identity_bundle(place / "bundles", "bad"))
    with running(place / "cache", place / "bundles", LISTENS, RUNTIME_BACKEND="cpu") as server:
        if not any("started: " in line for line in server.log):
            server.read_until("started: ")
        code, out, _ = run("status", "--watch", "--url", server.url.removeprefix("http://"))
    assert code == 0
    assert [row[:2] for row in rows(out)] == [["bad", "UNAVAILABLE"], ["good", "READY"]]
    assert "bad: " in out
    assert "not an ONNX file" in out


def test_status_of_its_own_server_takes_the_token_that_that_made(run, place, monkeypatch):
    with running(place / "cache", place / "bundles", LISTENS, ENDPOINTS_API_TOKEN="secret") as server:
        monkeypatch.setenv("INFERENCE_SERVER_ENDPOINTS_PORT", str(server.port))
        assert run("status")[0] == 0
        code, _, err = run("status", "--url", server.url)  # for all that we know this is somebody else's
        assert (code, "asks for a token" in err) == (1, True)
        monkeypatch.setenv("INFERENCE_SERVER_ENDPOINTS_API_TOKEN", "wrong")
        assert run("status", "--url", server.url)[0] == 1
        monkeypatch.setenv("INFERENCE_SERVER_ENDPOINTS_API_TOKEN", "secret")
        assert run("status", "--url", server.url)[0] == 0


def test_status_where_no_server_is_says_so(run, monkeypatch):
    monkeypatch.setenv("INFERENCE_SERVER_ENDPOINTS_PORT", str(free_port()))
    code, _, err = run("status")
    assert (code, "no server answers at http://127.0.0.1:" in err) == (1, True)


def node(**told):
    """A status of one model that was never loaded, and one that failed."""
    models = [
        {"name": name, "state": "UNAVAILABLE", "reason": reason, "serving": None}
        for name, reason in (("bad", "junk"), ("gone", "unloaded"), ("idle", "not loaded"))
    ]
    return {
        "backend": "cpu", "device": "cpu", "alive": True, "draining": False, "discipline": "fair",
        "control_mode": "explicit", "queue_depth": 0, "device_memory_in_use_bytes": 88_900_000,
        "device_memory_limit_bytes": 40_000_000, "resident_weight_bytes": 16_800_000, "weight_pool_bytes": 35_000_000,
        "models": models, "problems": {}, **told,
    }  # fmt: skip


def shown(status):
    """The table as text."""
    console = terminal.console()
    with console.capture() as text:
        console.print(terminal.status_table(status))
    return text.get()


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({}, "process 88.9 MB, weights 16.8 MB of 35 MB (budget 40 MB)"),
        ({"device_memory_limit_bytes": 0}, "process 88.9 MB, weights 16.8 MB"),
        ({"backend": "cuda"}, "memory 88.9 MB of 40 MB, weights 16.8 MB"),
    ],
)
def test_status_holds_against_a_budget_what_counts_against_it(told, line):
    assert shown(node(**told)).splitlines()[0].endswith(f", {line}")


def test_a_model_that_nobody_loaded_is_no_fault():
    assert shown(node()).splitlines()[-1] == "bad: junk"


# the process


def test_a_command_is_a_process_with_an_exit_status(place):
    write_identity_bundle(place / "bundles", "good")
    break_model(write_identity_bundle(place / "bundles", "bad"))
    command = [sys.executable, "-m", "app", "compile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert [row[0] for row in rows(done.stdout)] == ["good"]
    assert [line for line in done.stderr.splitlines() if "compiling" not in line] == [
        line for line in done.stderr.splitlines() if line.startswith("error: bad: ")
    ]


class OnTerminal:
    """A command whose three streams are a terminal."""

    def __init__(self, *arguments):
        self.master, terminal = pty.openpty()
        command = [sys.executable, "-m", "app", *arguments]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
        )
        os.close(terminal)
        self.text = ""

    def read_until(self, text=None):
        """Read until `text` appears, or everything."""
        while text is None or text not in self.text:
            try:
                part = os.read(self.master, 65536)
            except OSError:  # so Linux says that the other end is closed
                part = b""
            if not part:
                assert text is None, f"it ended before {text!r}:\n{self.text}"
                break
            self.text += part.decode(errors="replace")
        return self.text

    def end(self):
        """The exit status."""
        self.read_until()
        os.close(self.master)
        return self.process.wait(60)


def test_who_watches_sees_the_table_again_and_again_until_enter(place):
    with running(place / "cache", place / "bundles", LISTENS) as server:
        watching = OnTerminal("status", "--watch", "--url", server.url)
        watching.read_until("rows/run")
        watching.text = ""
        watching.read_until("rows/run")
        os.write(watching.master, b"\n")
        assert watching.end() == 0


def test_on_a_terminal_progress_moves_and_complaints_stay(place):
    write_identity_bundle(place / "bundles", "good")
    break_model(write_identity_bundle(place / "bundles", "bad"))
    compiling = OnTerminal("compile")
    assert compiling.end() == 1
    assert "compiling good" in compiling.text
    assert "[1/2]" not in compiling.text
    assert "error: bad: " in compiling.text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (54_400, "54.4 kB"), (3 * 10**15, "3e+03 TB")]
)
def test_bytes_are_three_digits_and_a_unit(count, text):
    assert terminal.human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (5.3e-6, "5.3 µs"), (0.001, "1 ms"), (0.05761, "57.6 ms"), (1.0, "1 s"), (4000, "4000 s")],
)
def test_seconds_are_three_digits_and_a_unit(seconds, text):
    assert terminal.human_seconds(seconds) == text
