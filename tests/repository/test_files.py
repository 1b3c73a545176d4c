"""Which files make a bundle, and which names a model may have."""

import pytest

from app.repository.files import bundle_files, is_bundle, name_fault


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-1", "resnet50", "a..b", "a" * 255])
def test_name_that_a_model_can_have(name):
    assert name_fault(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".a",
        "_a",
        "-a",
        "a/b",
        "a/../b",
        "../a",
        "a\\b",
        "a\0",
        "a ",
        " a",
        "a\n",
        "é",
        "a\N{FULLWIDTH FULL STOP}b",
        "%2e%2e%2f",
        "a:b",
        "a" * 256,
        "a" * 10_000,
    ],
)
def test_name_that_no_model_can_have(name):
    fault = name_fault(name)
    assert fault is not None
    assert fault.endswith(
        "is no model name: use letters, digits, '.', '_' and '-', a letter or digit first, at most 255"
    )
    assert len(fault) < 1200


def test_name_that_would_hide_the_statistics_is_refused():
    assert name_fault("stats") == "'stats' is no model name: /v2/models/stats are the statistics of all models"


@pytest.mark.parametrize(("name", "found"), [("model.onnx", True), ("manifest.yaml", True), ("hooks.py", False)])
def test_directory_is_a_bundle_by_its_model_or_manifest(tmp_path, name, found):
    (tmp_path / name).touch()
    assert is_bundle(tmp_path) is found


def test_file_is_no_bundle(tmp_path):
    (tmp_path / "model.onnx").touch()
    assert not is_bundle(tmp_path / "model.onnx")


def test_files_of_a_bundle_come_by_name_without_bytecode_and_dot_files(tmp_path):
    for name in ["b.bin", "a/z", "a/.hidden", ".git/HEAD", "__pycache__/x.pyc", "a/__pycache__/y.pyc", "a.bin"]:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    assert bundle_files(tmp_path) == [(name, tmp_path / name) for name in ["a.bin", "a/z", "b.bin"]]


def test_linked_files_belong_to_a_bundle_and_linked_directories_do_not(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "model.onnx").touch()
    (tmp_path / "model.onnx").symlink_to("..data/model.onnx")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [name for name, _ in bundle_files(tmp_path)] == ["model.onnx"]
