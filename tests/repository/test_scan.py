"""What lies in the model directories, and what changed since the last look."""

import os
import shutil
from pathlib import Path

import pytest

from app.repository.scan import Added, Changed, Found, Removed, Renamed, diff, scan


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "models"
    path.mkdir()
    return path


def _bundle(path: Path, content: str = "x") -> Path:
    path.mkdir(parents=True)
    (path / "model.onnx").write_text(content)
    return path


def _found(**signatures: str) -> dict[str, Found]:
    return {name: Found(Path("/models", name), signature) for name, signature in signatures.items()}


def _at(name: str) -> Path:
    return Path("/models", name)


# scan


def test_directories_with_a_model_or_a_manifest_are_bundles(root):
    _bundle(root / "plain")
    (root / "declared").mkdir()
    (root / "declared" / "manifest.yaml").touch()
    (root / "README.md").touch()
    (root / "requirements.txt").touch()
    _bundle(root / ".hidden")
    seen = scan([root])
    assert list(seen.bundles) == ["declared", "plain"]
    assert seen.bundles["plain"].path == root / "plain"
    assert seen.problems == {}


def test_scan_twice_gives_the_same(root):
    _bundle(root / "a")
    assert scan([root]) == scan([root])


def test_signature_changes_with_name_size_and_time_of_any_file(root):
    path = _bundle(root / "a")
    signatures = [scan([root]).bundles["a"].signature]
    (path / "hooks.py").touch()
    signatures.append(scan([root]).bundles["a"].signature)
    (path / "hooks.py").rename(path / "hook.py")
    signatures.append(scan([root]).bundles["a"].signature)
    os.utime(path / "hook.py", ns=(1, 1))
    signatures.append(scan([root]).bundles["a"].signature)
    (path / "hook.py").write_text("x")
    os.utime(path / "hook.py", ns=(1, 1))
    signatures.append(scan([root]).bundles["a"].signature)
    assert len(set(signatures)) == len(signatures)


def test_signature_does_not_change_with_bytecode_dot_files_and_the_name_of_the_directory(root):
    path = _bundle(root / "a")
    before = scan([root]).bundles["a"].signature
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "x.pyc").touch()
    (path / ".swp").touch()
    path.rename(root / "b")
    assert scan([root]).bundles["b"].signature == before


def test_name_that_no_model_can_have_is_a_problem(root):
    _bundle(root / "my model")
    seen = scan([root])
    assert seen.bundles == {}
    assert seen.problems[root / "my model"].startswith("'my model' is no model name: ")


def test_models_that_are_not_where_a_bundle_has_them_are_passed_over_and_told_of(root):
    _bundle(root / "a")
    (root / "loose.onnx").touch()
    (root / "resnet").mkdir()
    (root / "resnet" / "resnet.onnx").touch()
    (root / "empty").mkdir()
    for name in (".hidden", "_mine"):
        (root / name).mkdir()
        (root / name / "x.onnx").touch()
    (root / ".loose.onnx").touch()
    seen = scan([root])
    assert (list(seen.bundles), seen.problems) == (["a"], {})
    assert set(seen.passed_over) == {root / "loose.onnx", root / "resnet", root / "empty"}
    assert f"put it at {root}/loose/model.onnx" in seen.passed_over[root / "loose.onnx"]
    assert "rename resnet.onnx to model.onnx" in seen.passed_over[root / "resnet"]
    assert "neither model.onnx nor manifest.yaml" in seen.passed_over[root / "empty"]


def _version(model, number, file="model.onnx"):
    (model / number).mkdir(parents=True)
    (model / number / file).touch()


def test_a_model_as_triton_lays_it_out_is_told_how_it_becomes_a_bundle(root):
    for number in ("2", "10"):
        _version(root / "versions", number)
    _version(root / "configured", "1", "model.onnx")
    (root / "configured" / "assets").mkdir()
    (root / "configured" / "config.pbtxt").touch()
    _version(root / "plan", "1", "model.plan")
    (root / "plan" / "config.pbtxt").touch()
    _version(root / "bundles", "1")
    (root / "bundles" / "resnet").mkdir()
    told = scan([root]).passed_over
    assert f"`inference-server pack {root}/versions/10/model.onnx DIR/versions`" in told[root / "versions"]
    assert f"`inference-server pack {root}/configured/1/model.onnx DIR/configured`" in told[root / "configured"]
    assert "(config.pbtxt), and without an ONNX file" in told[root / "plan"]
    assert "name it in model_dirs" in told[root / "bundles"]
    assert scan([root / "versions"]).passed_over == {root / "versions": told[root / "versions"]}


def test_a_bundle_in_place_of_a_directory_of_bundles_is_told_of(root):
    path = _bundle(root / "a")
    assert scan([path]).passed_over == {
        path: f"is a bundle, and no directory of bundles: name the directory that it lies in, {root}"
    }


def test_a_directory_without_anything_is_told_of(root):
    assert scan([root]).passed_over == {root: "holds no bundle: put a directory with a model.onnx into it"}


def test_vanished_root_is_a_problem_and_its_models_stay(root, tmp_path):
    _bundle(root / "a")
    _bundle(tmp_path / "other" / "b")
    before = scan([root, tmp_path / "other"])
    shutil.rmtree(root)
    shutil.rmtree(tmp_path / "other" / "b")
    after = scan([root, tmp_path / "other"], before)
    assert after.bundles == {"a": before.bundles["a"]}
    assert after.problems == {root: "cannot be read (No such file or directory): its models stay as they were"}
    assert diff(before.bundles, after.bundles) == (Removed("b"),)


def test_models_of_a_root_that_came_back_are_unchanged(root):
    _bundle(root / "a")
    before = scan([root])
    root.rename(root.with_name("away"))
    during = scan([root], before)
    root.with_name("away").rename(root)
    assert scan([root], during) == before


def test_root_that_was_never_there_has_no_models(root):
    seen = scan([root / "absent"])
    assert seen.bundles == {}
    assert list(seen.problems) == [root / "absent"]


def test_root_that_is_a_file_is_a_problem(root):
    (root / "file").touch()
    assert scan([root / "file"]).problems == {
        root / "file": "cannot be read (Not a directory): its models stay as they were"
    }


def test_bundle_that_cannot_be_read_stays_as_it_was(root):
    path = _bundle(root / "a")
    before = scan([root])
    (path / "weights.bin").symlink_to(path / "absent")
    after = scan([root], before)
    assert after.bundles == before.bundles
    assert after.problems == {path: "cannot be read (No such file or directory): its model stays as it was"}
    assert scan([root]).bundles == {}


def test_bundle_that_cannot_be_read_is_not_taken_for_its_namesake_in_another_root(root, tmp_path):
    second = _bundle(tmp_path / "other" / "a")
    before = scan([root, tmp_path / "other"])
    first = _bundle(root / "a")
    (first / "weights.bin").symlink_to(first / "absent")
    after = scan([root, tmp_path / "other"], before)
    assert after.bundles["a"].path == second
    assert list(after.problems) == [first]


def test_earlier_root_wins_where_two_have_the_same_name(root, tmp_path):
    first, second = _bundle(root / "a"), _bundle(tmp_path / "other" / "a", "y")
    seen = scan([root, tmp_path / "other"])
    assert seen.bundles["a"].path == first
    assert seen.problems == {second: f"{first} has the same model name: rename one of them"}


def test_linked_bundle_is_found_and_follows_its_target(root, tmp_path):
    old, new = _bundle(tmp_path / "v1"), _bundle(tmp_path / "v2", "longer")
    (root / "a").symlink_to(old)
    before = scan([root])
    (root / "a").unlink()
    (root / "a").symlink_to(new)
    assert diff(before.bundles, scan([root]).bundles) == (Changed("a", root / "a"),)


def test_renamed_directory_is_seen_as_renamed(root):
    _bundle(root / "a")
    before = scan([root])
    (root / "a").rename(root / "b")
    assert diff(before.bundles, scan([root]).bundles) == (Renamed("a", "b", root / "b"),)


def _set_times(*bundles: Path) -> None:
    """As in the layer of an image."""
    for bundle in bundles:
        os.utime(bundle / "model.onnx", ns=(1, 1))


def test_bundles_of_equal_sizes_and_times_are_told_apart_when_they_change_places(root):
    _set_times(_bundle(root / "production", "1"), _bundle(root / "staging", "2"))
    before = scan([root])
    (root / "production").rename(root / "old")
    (root / "staging").rename(root / "production")
    assert diff(before.bundles, scan([root]).bundles) == (
        Renamed("production", "old", root / "old"),
        Renamed("staging", "production", root / "production"),
    )


def test_file_replaced_by_one_of_equal_size_and_time_is_a_change(root):
    path = _bundle(root / "a", "1")
    _set_times(path, _bundle(root / ".new", "2"))
    before = scan([root])
    (root / ".new" / "model.onnx").replace(path / "model.onnx")
    assert diff(before.bundles, scan([root]).bundles) == (Changed("a", path),)


def test_file_written_over_with_equal_size_and_time_is_a_change(root):
    path = _bundle(root / "a", "1")
    _set_times(path)
    before, changed = scan([root]), (path / "model.onnx").stat().st_ctime_ns
    while (path / "model.onnx").stat().st_ctime_ns == changed:  # until the clock of the file system ticks
        (path / "model.onnx").write_text("2")
        _set_times(path)
    assert diff(before.bundles, scan([root]).bundles) == (Changed("a", path),)


def test_copy_in_the_place_of_the_original_is_other_files(root):
    path = _bundle(root / "a")
    before = scan([root])
    shutil.copytree(path, root / "b")
    shutil.rmtree(path)
    assert diff(before.bundles, scan([root]).bundles) == (Removed("a"), Added("b", root / "b"))


# diff


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": "1"}, {"a": "1"}, ()),
        ({}, {"b": "2", "a": "1"}, (Added("a", _at("a")), Added("b", _at("b")))),
        ({"a": "1"}, {"a": "2"}, (Changed("a", _at("a")),)),
        ({"b": "2", "a": "1"}, {}, (Removed("a"), Removed("b"))),
        ({"a": "1"}, {"b": "1"}, (Renamed("a", "b", _at("b")),)),
        ({"a": "1"}, {"a": "1", "b": "1"}, (Added("b", _at("b")),)),
        ({"a": "1", "b": "1"}, {"b": "1"}, (Removed("a"),)),
        ({"a": "1", "b": "1"}, {"c": "1"}, (Removed("b"), Renamed("a", "c", _at("c")))),
        ({"a": "1"}, {"b": "1", "c": "1"}, (Renamed("a", "b", _at("b")), Added("c", _at("c")))),
    ],
)
def test_changes_are_told_apart(old, new, changes):
    assert diff(_found(**old), _found(**new)) == changes


def test_chain_of_renames_is_seen_in_one_round():
    old = _found(production="1", staging="2")
    new = _found(old="1", production="2", staging="3")
    assert diff(old, new) == (
        Renamed("production", "old", _at("old")),
        Renamed("staging", "production", _at("production")),
        Added("staging", _at("staging")),
    )


def test_ring_of_renames_is_seen_in_one_round():
    assert diff(_found(a="1", b="2"), _found(a="2", b="1")) == (
        Renamed("a", "b", _at("b")),
        Renamed("b", "a", _at("a")),
    )


def test_bundle_renamed_onto_another_removes_that_one():
    assert diff(_found(production="1", staging="2"), _found(production="2")) == (
        Removed("production"),
        Renamed("staging", "production", _at("production")),
    )


def test_same_files_in_another_place_are_a_change():
    elsewhere = {"a": Found(Path("/other/a"), "1")}
    assert diff(_found(a="1"), elsewhere) == (Changed("a", Path("/other/a")),)
