"""The bound of the compile cache: who uses an entry keeps it; of the others the longest unused go."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.backends import cache as cache_module
from app.backends.cache import CompileCache
from app.backends.compiler import Compiler
from app.backends.entry import Layout, StoredEntry
from app.backends.pruning import lease, prune
from tests.backends import models
from tests.backends.test_compiler import CPU

ROOT = Path(__file__).parents[2]

MANIFEST = "entry.json"


@pytest.fixture
def cache(tmp_path):
    """Directories as the cache has them."""
    for name in ("entries", "scratch"):
        (tmp_path / name).mkdir()
    return tmp_path


def put(cache, name, nbytes=100, used_at=0):
    """An entry of so many bytes that was used at that second."""
    path = cache / "entries" / name
    path.mkdir()
    (path / "weights.bin").write_bytes(bytes(nbytes))
    (path / MANIFEST).touch()
    os.utime(path / MANIFEST, (used_at, used_at))
    return path


def pruned(cache, most_bytes):
    """Prune; the names of what stays."""
    prune(cache / "entries", MANIFEST, cache / "scratch", most_bytes)
    assert list((cache / "scratch").iterdir()) == []
    return sorted(path.name for path in (cache / "entries").iterdir())


def test_the_longest_unused_go_until_the_rest_fits(cache):
    for name, used_at in (("a", 3), ("b", 1), ("c", 4), ("d", 2)):
        put(cache, name, used_at=used_at)
    assert pruned(cache, 400) == ["a", "b", "c", "d"]
    assert pruned(cache, 399) == ["a", "c", "d"]
    assert pruned(cache, 200) == ["a", "c"]
    assert pruned(cache, 0) == []


def test_a_lease_marks_an_entry_as_used(cache):
    for name in "ab":
        put(cache, name)
    lease(cache / "entries" / "a" / MANIFEST)
    assert pruned(cache, 100) == ["a"]


def test_what_somebody_holds_stays_for_as_long_as_they_do(cache):
    held = lease(put(cache, "a") / MANIFEST)
    put(cache, "b", used_at=1)
    assert held is not None
    assert pruned(cache, 0) == ["a"]
    del held
    assert pruned(cache, 0) == []


def test_several_may_hold_one_entry(cache):
    file = put(cache, "a") / MANIFEST
    first, second = lease(file), lease(file)
    del first
    assert second is not None
    assert pruned(cache, 0) == ["a"]


def test_an_entry_that_is_gone_has_no_lease(cache):
    with pytest.raises(FileNotFoundError):
        lease(cache / "entries" / "a" / MANIFEST)


def test_a_directory_without_a_manifest_is_left_alone(cache):
    (cache / "entries" / "other").mkdir()
    assert pruned(cache, 0) == ["other"]


def test_what_cannot_be_moved_aside_stays(cache):
    put(cache, "a")
    busy = cache / "scratch" / "a.pruned"
    busy.mkdir()
    (busy / "file").touch()
    prune(cache / "entries", MANIFEST, cache / "scratch", 0)
    assert [path.name for path in (cache / "entries").iterdir()] == ["a"]


# another server


HOLDER = """
import sys
from pathlib import Path
from app.backends.cache import CompileCache
entry = CompileCache(Path(sys.argv[1])).open(sys.argv[2])
print("no" if entry is None else "yes", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def compilers(tmp_path):
    """Two servers over one cache, of which the second keeps next to nothing."""
    both = [Compiler(tmp_path / "cache", CPU, cache_bytes=bound) for bound in (0, 1)]
    yield both
    for each in both:
        each.close()


def entries(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache" / "entries").iterdir())


@pytest.mark.parametrize("killed", [False, True])
def test_another_process_keeps_its_entry_until_it_ends_however_it_ends(compilers, tmp_path, killed):
    first, second = compilers
    name = first.compile(models.save(tmp_path / "a", models.mlp()[0]), models.mlp()[1]).path.name
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "cache"), name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "yes\n"
        for sizes in ((3,), (5,)):  # each is pruned by the next, whoever holds nothing
            second.compile(tmp_path / "a" / "model.onnx", models.mlp(sizes=sizes)[1])
        assert name in entries(tmp_path)
        assert len(entries(tmp_path)) == 2
        if killed:
            holder.kill()
        else:
            holder.stdin.close()
        holder.wait(30)
    second.compile(tmp_path / "a" / "model.onnx", models.mlp(sizes=(7,))[1])
    assert name not in entries(tmp_path)


def test_an_entry_that_another_server_removed_is_made_again_when_it_is_needed(compilers, tmp_path):
    first, second = compilers
    built, described = models.mlp()
    file = models.save(tmp_path / "a", built)
    name = first.compile(file, described).path.name
    second.compile(file, models.mlp(sizes=(3,))[1])
    assert name not in entries(tmp_path)
    again = first.compile(file, described)
    assert (again.path.name, again.made, again.form) == (name, True, "prepacked")


def test_an_entry_in_use_outlives_a_server_that_keeps_nothing(compilers, tmp_path):
    first, second = compilers
    file = models.save(tmp_path / "a", models.mlp()[0])
    entry = first.compile(file, models.mlp()[1])
    second.compile(file, models.mlp(sizes=(3,))[1])
    assert CompileCache(tmp_path / "cache").open(entry.path.name) == entry


def publish(cache, key, nbytes):
    """Publish an entry of so many bytes of weights."""
    with cache.workspace() as workspace:
        (workspace / "weights.bin").write_bytes(bytes(nbytes))
        cache.publish(workspace, key, StoredEntry("plain", False, nbytes, Layout((), {})))


def test_a_cache_far_from_its_bound_is_not_counted_for_every_entry(tmp_path, monkeypatch):
    """With a thousand entries each count looks at two thousand files."""
    counted = []

    def count_and_prune(*args):
        counted.append(args)
        return prune(*args)

    monkeypatch.setattr(cache_module, "prune", count_and_prune)
    cache = CompileCache(tmp_path, 10_000_000)
    for number in range(50):
        publish(cache, f"entry-{number}", 1000)
    assert len(counted) == 1


def test_a_cache_never_outgrows_its_bound(tmp_path):
    cache = CompileCache(tmp_path, 100_000)
    for number in range(60):
        publish(cache, f"entry-{number}", 4_000)
        gc.collect()  # nobody holds what was published
        assert sum(file.stat().st_size for file in tmp_path.glob("entries/*/*")) <= 100_000 + 5_000
    assert len(list((tmp_path / "entries").iterdir())) > 15
