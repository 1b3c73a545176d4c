"""Models that a bundle builds itself: when, from what, and what is said when it does not work."""

import os
import subprocess
import threading

import pytest
import yaml

from app.domain.errors import BundleError
from app.repository.build import Builder
from app.repository.bundle import load_bundle
from tests.processes import wait_ended

#: Copies `net.bin` to the model, and leaves a line in `log` for every time that it runs.
BUILD = """
from pathlib import Path

def build(source, target):
    with (Path(__file__).parents[2] / "log").open("a") as log:
        print(source.name, target.is_dir(), file=log)
    (target / "model.onnx").write_bytes((Path(__file__).parent / "net.bin").read_bytes())
"""


@pytest.fixture
def build_dir(bundle_dir):
    """The bundle with a build file instead of a model."""
    (bundle_dir / "model.onnx").rename(bundle_dir / "net.bin")
    (bundle_dir / "build.py").write_text(BUILD)
    write_keys(bundle_dir, build="build.py")
    return bundle_dir


def write_keys(bundle_dir, more=None, **file):
    keys = {"format_version": "1", "file": file} | (more or {})
    (bundle_dir / "manifest.yaml").write_text(yaml.safe_dump(keys))


@pytest.fixture
def cache_dir(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def builder(cache_dir):
    return Builder(cache_dir)


@pytest.fixture
def load(build_dir, builder):
    return lambda: load_bundle(build_dir, build=builder)


@pytest.fixture
def built(tmp_path):
    """What was built so far: the source's name and whether there was a directory to build in."""
    log = tmp_path / "log"
    return lambda: log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def complaint(build_dir, load):
    """What is said about a build file with this text, without its name."""

    def complaint_of(text):
        (build_dir / "build.py").write_text(text)
        with pytest.raises(BundleError) as caught:
            load()
        file, _, said = str(caught.value).partition(": ")
        assert file == str(build_dir / "build.py")
        return said

    return complaint_of


def test_model_is_built_once_and_kept(cache_dir, build_dir, load, built):
    bundle = load()
    assert bundle.model_file.is_relative_to(cache_dir)
    assert bundle.spec.inputs[0].name == "x"
    assert load().model_file == bundle.model_file
    assert load_bundle(build_dir, build=Builder(cache_dir)).digest == bundle.digest
    assert built() == ["example True"]
    assert list((cache_dir / "building").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "times"),
    [
        ("net.bin", None, 2),
        ("words.txt", "a word", 2),
        ("build.py", BUILD + "# changed", 2),
        ("hooks.py", "def preprocess(inputs): return inputs", 1),
    ],
)
def test_model_is_built_again_when_what_it_is_made_of_changes(
    build_dir, write_graph, load, built, name, content, times
):
    before = load()
    if content is None:
        write_graph(build_dir / name, doc_string="trained again")
    else:
        (build_dir / name).write_text(content)
    after = load()
    assert len(built()) == times
    assert (after.model_file == before.model_file) is (times == 1)
    assert after.digest != before.digest


def test_other_keys_of_the_manifest_build_nothing_anew(build_dir, load, built):
    load()
    write_keys(build_dir, {"description": "changed"}, build="build.py")
    assert load().spec.description == "changed"
    assert len(built()) == 1


def test_source_is_a_file_of_the_bundle(build_dir, load, built):
    write_keys(build_dir, build="build.py", path="net.bin")
    load()
    assert built() == ["net.bin True"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed distribution `weight-files`, with one file of weights."""
    site = tmp_path / "site"
    (site / "weight_files").mkdir(parents=True)
    (site / "weight_files-1.0.dist-info").mkdir()
    (site / "weight_files-1.0.dist-info" / "METADATA").write_text("Name: weight-files\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(site)
    return site / "weight_files" / "weights"


def test_source_in_a_package_is_told_apart_by_its_content(build_dir, package, load, built):
    write_keys(build_dir, build="build.py", package="weight-files", path="weight_files/weights")
    package.write_bytes(b"1")
    load()
    load()
    package.write_bytes(b"2")
    load()
    assert built() == ["weights True"] * 2


def test_package_that_is_not_installed_is_named_before_anything_is_built(build_dir, load, built):
    write_keys(build_dir, build="build.py", package="no-such-package", path="x")
    with pytest.raises(BundleError, match=r"file\.package: 'no-such-package' is not installed: install it"):
        load()
    assert built() == []


def test_build_file_that_is_not_there_is_named(build_dir, load):
    (build_dir / "build.py").unlink()
    with pytest.raises(BundleError, match=r"manifest\.yaml: file\.build: there is no .*build\.py: put it there"):
        load()


def test_who_offers_no_builder_gets_a_remedy(build_dir):
    with pytest.raises(BundleError, match=r"file\.build: nothing is built here: load the bundle in a server, or name"):
        load_bundle(build_dir)


def test_external_data_lies_beside_the_model_and_counts(build_dir, package, load):
    """The bundle's own files stay the same, and so does the graph."""
    write_keys(build_dir, build="build.py", package="weight-files", path="weight_files/weights")
    (build_dir / "build.py").write_text(BUILD + '    (target / "model.data").write_bytes(source.read_bytes())\n')
    digests = set()
    for content in (b"1", b"2"):
        package.write_bytes(content)
        bundle = load()
        assert (bundle.model_file.parent / "model.data").read_bytes() == content
        digests.add(bundle.digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "the build failed (ZeroDivisionError: division by zero): mend it"),
        ("def build(", "the build failed (SyntaxError: '(' was never closed): mend it"),
        ("import app_of_another", "the build failed (ModuleNotFoundError: No module named 'app_of_another'): mend it"),
        ("x = 1", "the build failed (TypeError: it defines no function build(source, target)): mend it"),
        ("build = 1", "the build failed (TypeError: it defines no function build(source, target)): mend it"),
        (
            "def build(source, target): raise ValueError('no weights')",
            "the build failed (ValueError: no weights): mend it",
        ),
        (
            "def build(source, target): pass",
            "the build failed (FileNotFoundError: it left no model.onnx in the directory target): mend it",
        ),
        ("import sys; sys.exit(3)", "the build failed (status 3): mend it"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the build failed (died of SIGSEGV): mend it"),
        (
            "def build(source, target): (target / 'model.onnx').write_text('text')",
            "builds what cannot be served: not an ONNX file (",
        ),
    ],
)
def test_build_that_fails_is_named_and_leaves_nothing(complaint, cache_dir, text, said):
    assert complaint(text).startswith(said)
    assert list((cache_dir / "building").iterdir()) == []
    assert not (cache_dir / "built").exists()


def test_build_file_imports_nothing_of_the_server_by_accident(complaint):
    """Modules of ours must not answer to common names."""
    assert "No module named 'build_child'" in complaint("import build_child")


def test_build_that_hangs_is_ended_with_what_it_started(build_dir, cache_dir, tmp_path, monkeypatch):
    begun, wait, told = tmp_path / "begun", subprocess.Popen.wait, []
    os.mkfifo(begun)

    def wait_from_then_on(process, timeout=None):
        if timeout is not None:
            told.append(int(begun.read_text()))
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_from_then_on)
    (build_dir / "build.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        f"open({str(begun)!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    with pytest.raises(
        BundleError, match=r"build\.py: the build was ended: it took more than 0\.1 s: build the model bef"
    ):
        load_bundle(build_dir, build=Builder(cache_dir, seconds=0.1))
    [started] = told
    wait_ended(started)


def test_build_under_way_ends_when_the_builder_is_closed(build_dir, builder, tmp_path):
    os.mkfifo(tmp_path / "begun")
    (build_dir / "build.py").write_text(
        f"open({str(tmp_path / 'begun')!r}, 'w').close()\nimport signal; signal.pause()"
    )

    def close():
        with open(tmp_path / "begun"):
            builder.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(BundleError, match=r"build\.py: the build was stopped"):
        load_bundle(build_dir, build=builder)
    closing.join()


def test_closed_builder_begins_nothing_and_still_finds(cache_dir, build_dir, built, write_graph):
    builder = Builder(cache_dir)
    load_bundle(build_dir, build=builder)
    builder.close()
    load_bundle(build_dir, build=builder)
    (build_dir / "words.txt").write_text("changed")
    with pytest.raises(BundleError, match="the build was stopped"):
        load_bundle(build_dir, build=builder)


def test_place_that_cannot_be_written_is_named(build_dir, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match=r"build\.py: what it builds cannot be kept \(.*\): free some space, or name"):
        load_bundle(build_dir, build=Builder(tmp_path / "file"))
