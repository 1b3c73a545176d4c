"""Entries are whole or absent, whoever else writes, and whatever died while writing."""

import json
import os

import pytest

from app.backends.cache import CompileCache, cpu_features, key_of
from app.backends.entry import Layout, StoredEntry, StoredGraph, StoredRun

STORED = StoredEntry(
    "prepacked",
    optimised=True,
    weight_bytes=7,
    layout=Layout(("n",), {"v": {"h": 8}}),
    reason="r",
    runs=(StoredRun("v", 1, 0.25, quick=True), StoredRun("v", 2, 0.5, quick=False)),
    graphs=(StoredGraph("v", 1, "", "graph-0.onnx", 512, 1024, 0.5, 1.0), StoredGraph("v", 2, "no")),
)
KEY = key_of({"a": 1})


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path)


def publish(cache, key=KEY, content=b"model", stored=STORED):
    with cache.workspace() as workspace:
        (workspace / "model.onnx").write_bytes(content)
        return cache.publish(workspace, key, stored)


def scratch(cache):
    return list((cache._scratch).iterdir())


def test_an_entry_is_found_as_it_was_published(cache):
    published = publish(cache)
    assert cache.open(KEY) == published
    assert (published.form, published.weight_bytes, published.reason) == ("prepacked", 7, "r")
    assert published.warm == {("v", 1): 0.25, ("v", 2): 0.5}
    assert (published.graphs, published.replayed) == (STORED.graphs, {"v": (1,)})
    assert (published.path / "model.onnx").read_bytes() == b"model"
    assert scratch(cache) == []


def test_an_entry_that_nobody_made_is_absent(cache):
    assert cache.open(KEY) is None


def test_keys_tell_facts_apart_and_not_their_order():
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


@pytest.mark.parametrize("size", [0, 4, (1 << 20) + 5, (3 << 20)])
def test_a_truncated_file_makes_the_entry_absent(cache, size):
    entry = publish(cache, content=bytes(range(256)) * (1 << 14))
    os.truncate(entry.path / "model.onnx", size)
    assert cache.open(KEY) is None


def test_a_foreign_file_of_the_same_size_makes_the_entry_absent(cache):
    entry = publish(cache)
    (entry.path / "model.onnx").write_bytes(b"nodel")
    assert cache.open(KEY) is None


def test_a_large_file_with_another_end_makes_the_entry_absent(cache):
    content = bytes(3 << 20)
    entry = publish(cache, content=content)
    (entry.path / "model.onnx").write_bytes(content[:-1] + b"1")
    assert cache.open(KEY) is None


def test_a_missing_file_makes_the_entry_absent(cache):
    entry = publish(cache)
    (entry.path / "model.onnx").unlink()
    assert cache.open(KEY) is None


def test_an_entry_under_another_name_is_absent(cache):
    entry = publish(cache)
    other = key_of({"a": 2})
    entry.path.rename(entry.path.with_name(other))
    assert cache.open(other) is None


@pytest.mark.parametrize("manifest", [b"", b"[]", b"{", b'{"key": 1}', b"\xff"])
def test_a_manifest_of_another_kind_makes_the_entry_absent(cache, manifest):
    entry = publish(cache)
    (entry.path / "entry.json").write_bytes(manifest)
    assert cache.open(KEY) is None


@pytest.mark.parametrize("missing", ["key", "files", "form", "optimised", "weight_bytes", "dims", "reason", "runs"])
def test_a_manifest_with_a_gap_makes_the_entry_absent(cache, missing):
    file = publish(cache).path / "entry.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != missing}))
    assert cache.open(KEY) is None


def test_files_that_others_add_do_not_matter(cache):
    entry = publish(cache)
    (entry.path / "seeds.json").write_text("{}")
    assert cache.open(KEY) == entry


def test_who_is_second_gets_the_first_ones_entry(cache):
    first = publish(cache, content=b"first")
    second = publish(cache, content=b"second")
    assert second == first
    assert (second.path / "model.onnx").read_bytes() == b"first"
    assert scratch(cache) == []


def test_a_broken_entry_gives_way(cache):
    first = publish(cache, content=b"first")
    os.truncate(first.path / "model.onnx", 1)
    second = publish(cache, content=b"second")
    assert (second.path / "model.onnx").read_bytes() == b"second"
    assert cache.open(KEY) == second
    assert scratch(cache) == []


def fail_at_work(cache):
    with cache.workspace() as workspace:
        (workspace / "part").write_bytes(b"1")
        raise RuntimeError("worse")


def test_a_workspace_is_gone_when_its_work_failed(cache):
    with pytest.raises(RuntimeError, match="worse"):
        fail_at_work(cache)
    assert scratch(cache) == []


def test_what_a_dead_process_left_is_swept_and_what_is_being_written_is_not(cache):
    with cache.workspace() as busy:
        now = busy.stat().st_mtime
        dead, young = busy.parent / "dead", busy.parent / "young"
        for path, age in ((dead, 90), (young, 30), (busy, 100_000)):
            path.mkdir(exist_ok=True)
            os.utime(path, (now - age, now - age))
        publish(cache)
        assert sorted(scratch(cache)) == sorted([busy, young])
    assert scratch(cache) == [young]


def test_without_locks_what_a_dead_process_left_is_swept_after_a_day(cache, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    with cache.workspace() as workspace:
        now = workspace.stat().st_mtime
    dead, busy = cache._scratch / "dead", cache._scratch / "busy"
    for path, age in ((dead, 90_000), (busy, 1_000)):
        path.mkdir()
        os.utime(path, (now - age, now - age))
    publish(cache)
    assert scratch(cache) == [busy]


def test_notes_of_external_files_are_kept_by_digest(cache):
    assert cache.external_files("d") is None
    cache.note_external_files("d", ("a.bin", "b.bin"))
    assert cache.external_files("d") == ("a.bin", "b.bin")
    assert scratch(cache) == []


def test_cpu_features_are_those_of_the_processor_in_any_order(tmp_path):
    texts = {"a": "model name : x\nflags : sse avx\n", "b": "flags : avx sse\n", "c": "Features : neon\n", "d": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    features = {name: cpu_features(tmp_path / name) for name in texts}
    assert features["a"] == features["b"] != features["c"]
    assert "neon" in features["c"]
    assert cpu_features(tmp_path / "absent") == features["d"]
