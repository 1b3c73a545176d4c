"""Bad models, a full disk, a cache that was removed: one clear line, nothing half-written, and the next one works."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from app import backends
from app.backends.compiler import Compiler
from app.domain.config import RuntimeConfig
from app.domain.errors import BundleError
from tests.backends import models
from tests.backends.test_compiler import CPU, save_external

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compiler(tmp_path):
    compiler = Compiler(tmp_path / "cache", CPU)
    yield compiler
    compiler.close()


@pytest.fixture
def backend(tmp_path):
    backend = backends.create(RuntimeConfig(backend="cpu"), tmp_path / "cache")
    yield backend
    backend.close()


def left(cache):
    """The entries, and what was begun."""
    return [path.name for folder in ("entries", "scratch") for path in (cache / folder).glob("*")]


# models


def truncated(folder):
    file = models.save(folder, models.mlp()[0])
    os.truncate(file, file.stat().st_size // 2)


def empty(folder):
    folder.mkdir()
    (folder / "model.onnx").touch()


def of_an_unknown_operator(folder):
    built = models.mlp()[0]
    built.graph.node[0].op_type = "Teleport"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(built.SerializeToString())


def of_an_unknown_domain(folder):
    built = models.mlp()[0]
    built.graph.node[0].domain = "com.example"
    built.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    folder.mkdir()
    (folder / "model.onnx").write_bytes(built.SerializeToString())


def of_a_later_opset(folder):
    built = models.mlp()[0]
    built.opset_import[0].version = 1000
    folder.mkdir()
    (folder / "model.onnx").write_bytes(built.SerializeToString())


def without_its_data(folder):
    file = save_external(folder, models.mlp()[0])
    (file.parent / "data.bin").unlink()


def with_half_its_data(folder):
    file = save_external(folder, models.mlp()[0])
    os.truncate(file.parent / "data.bin", 1000)


def with_data_outside(folder):
    file = save_external(folder, models.mlp()[0])
    (folder / "data.bin").rename(folder.parent / "data.bin")
    built = onnx.load(str(file), load_external_data=False)
    for tensor in built.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../data.bin"
    file.write_bytes(built.SerializeToString())


BAD = {
    truncated: "not a readable ONNX model",
    empty: "not a readable ONNX model",
    of_an_unknown_operator: "Teleport",
    of_an_unknown_domain: "com.example",
    of_a_later_opset: "opset",
    without_its_data: r"data\.bin",
    with_half_its_data: r"External initializer",
    with_data_outside: r"data\.bin",
}


@pytest.mark.parametrize(("spoil", "words"), BAD.items(), ids=[spoil.__name__ for spoil in BAD])
def test_a_bad_model_is_one_line_that_names_the_file_and_the_same_child_takes_the_next(
    compiler, tmp_path, spoil, words
):
    built, described = models.mlp()
    spoil(tmp_path / "bad")
    with pytest.raises(BundleError, match=words) as caught:
        compiler.compile(tmp_path / "bad" / "model.onnx", described)
    assert str(tmp_path / "bad" / "model.onnx") in caught.value.message
    assert "\n" not in caught.value.message
    assert left(tmp_path / "cache") == []
    child = compiler._child._process
    assert compiler.compile(models.save(tmp_path / "good", built), described).form == "prepacked"
    assert child is None or compiler._child._process is child


# a full disk


FULL = """
import resource, sys
from pathlib import Path
from app.backends.compiler import Compiler
from app.domain.errors import BundleError
from tests.backends import models
from tests.backends.test_compiler import CPU
compiler = Compiler(Path(sys.argv[1]), CPU)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    print(compiler.compile(Path(sys.argv[2]), models.mlp()[1]).form)
except BundleError as error:
    print(error)
compiler.close()
"""


@pytest.mark.parametrize("most_bytes", [100, 2_000, 20_000, 60_000, 70_000])
def test_a_disk_without_room_is_said_to_be_and_leaves_no_trace_and_condemns_no_form(compiler, tmp_path, most_bytes):
    """No file may be longer than so many bytes: the note, the model, the weights, the packed weights do not fit."""
    built, described = models.mlp()
    file = models.save(tmp_path, built)
    command = [sys.executable, "-c", FULL, str(tmp_path / "cache"), str(file), str(most_bytes)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    assert told.startswith(f"{file}: ")
    assert "No space left on device" in told or "File too large" in told
    assert len(told.splitlines()) == 1
    assert left(tmp_path / "cache") == []
    assert compiler.compile(file, described).form == "prepacked"


# the cache, removed by hand


def test_what_runs_goes_on_when_the_cache_is_removed_and_what_is_loaded_next_says_that_it_is_gone(backend, tmp_path):
    built, described = models.mlp()
    file = models.save(tmp_path, built)
    entry = backend.compile(file, described)
    model = backend.prepare(entry, described).load()
    inputs = models.inputs_for(described, 2)
    before = model.run("default", 2, inputs)["y"]
    shutil.rmtree(tmp_path / "cache")
    assert (model.run("default", 2, inputs)["y"] == before).all()
    with pytest.raises(BundleError, match="is gone or damaged; load it again"):
        backend.prepare(entry, described)
    again = backend.compile(file, described)
    again_alike = replace(again, scratch_bytes=entry.scratch_bytes)  # measured anew: a page more or less
    assert (again_alike, again.made) == (entry, True)
    assert (backend.prepare(again, described).load().run("default", 2, inputs)["y"] == before).all()


def test_what_is_kept_warm_or_let_go_may_be_gone(backend, tmp_path):
    built, described = models.mlp()
    entry = backend.compile(models.save(tmp_path, built), described)
    shutil.rmtree(tmp_path / "cache")
    backend.keep_warm(entry)
    backend.let_go(entry)
    backend.remember(entry, {("default", 1): 0.1}, 0.1)


def test_an_entry_that_was_cut_short_is_gone_for_a_load_and_made_again_by_a_compilation(backend, tmp_path):
    built, described = models.mlp()
    file = models.save(tmp_path, built)
    entry = backend.compile(file, described)
    os.truncate(entry.path / "weights.bin", 100)
    with pytest.raises(BundleError, match="is gone or damaged; load it again"):
        backend.prepare(entry, described)
    assert backend.compile(file, described).made
    assert backend.prepare(entry, described).load().run("default", 1, models.inputs_for(described, 1))["y"].any()
