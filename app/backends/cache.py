"""The compile cache: content-addressed directories, written aside, renamed into place, checked when opened.

What was measured of an entry later lies beside it: an entry is never written again.
"""

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from app.backends.base import CacheEntry
from app.backends.entry import StoredEntry
from app.backends.pruning import Lease, is_occupied, lease, occupy, prune

#: Part of every key: raise it when the content of entries changes.
FORMAT = 6

_MANIFEST = "entry.json"

#: Bytes at either end of a file that its fingerprint covers; small files are covered whole.
_FINGERPRINT_BYTES = 1 << 20

#: Seconds after which a directory that was being written is taken to be abandoned, by whether a process has it locked:
#: one that was just made may not be locked yet, and some file systems know no locks.
_ABANDONED_SECONDS = {False: 60.0, None: 86_400.0, True: inf}


def key_of(facts: Mapping[str, Any]) -> str:
    """The name of the entry that these facts determine."""
    return hashlib.sha256(json.dumps({"format": FORMAT, **facts}, sort_keys=True).encode()).hexdigest()


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What optimised graphs and packed weights depend on: the architecture and its instruction sets."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {' '.join(sorted(flags.partition(':')[2].split()))}"


class CompileCache:
    """Entries below `root`, shared by every process that is given the same directory. No locks: renames decide."""

    def __init__(self, root: Path, most_bytes: int = 0) -> None:
        """With `most_bytes` above 0, entries that no process uses are removed beyond that, the longest unused first."""
        self._entries = root / "entries"
        self._notes = root / "external-data"
        self._measured = root / "measured"
        self._scratch = root / "scratch"
        self._most_bytes = most_bytes
        self._room = -1  # bytes that may be added before all entries are counted again

    def open(self, key: str) -> CacheEntry | None:
        """The entry, if it is there and whole; a truncated or foreign one counts as absent."""
        path = self._entries / key
        try:
            held = lease(path / _MANIFEST)
        except OSError:
            return None
        stored = _read(path, key)
        return None if stored is None or held is None else _cache_entry(path, stored, held)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty directory on the cache's file system, gone afterwards unless it was published."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=self._scratch))
        occupied = occupy(path)
        try:
            self._sweep(now=path.stat().st_mtime)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            del occupied

    def publish(self, workspace: Path, key: str, stored: StoredEntry) -> CacheEntry:
        """Make a finished workspace the entry of `key`. Where another process was faster, its entry is the one."""
        files = sorted(file for file in workspace.iterdir() if file.is_file())
        manifest = {"key": key, "files": {file.name: _fingerprint(file) for file in files}, **stored.to_json()}
        (workspace / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        sizes = [file.stat().st_size for file in files]
        # What a fingerprint covers whole is found out when the machine stopped too early: then it is made anew.
        durable = max(sizes, default=0) > 2 * _FINGERPRINT_BYTES
        for path in (*files, workspace / _MANIFEST, workspace) if durable else ():
            _sync(path)
        self._entries.mkdir(parents=True, exist_ok=True)
        target = self._entries / key
        while not _rename(workspace, target):
            if (present := self.open(key)) is not None:
                return present
            # Broken: out of the way with it. Whoever has its files mapped keeps them.
            _rename(target, self._scratch / f"{workspace.name}.broken")
            shutil.rmtree(self._scratch / f"{workspace.name}.broken", ignore_errors=True)
        if durable:
            _sync(self._entries)
        opened = self.open(key) or _cache_entry(target, stored, None)
        self._bound(sum(sizes))
        return opened

    def external_files(self, model_digest: str) -> tuple[str, ...] | None:
        """The external data files that a model file names, if that was noted; finding out means parsing the file."""
        try:
            return tuple(json.loads((self._notes / f"{model_digest}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def note_external_files(self, model_digest: str, names: tuple[str, ...]) -> None:
        """Remember what `external_files` returns."""
        self._notes.mkdir(parents=True, exist_ok=True)
        with self.workspace() as workspace:
            (workspace / "note").write_text(json.dumps(names))
            (workspace / "note").replace(self._notes / f"{model_digest}.json")

    def measured(self, key: str, profile: str) -> tuple[dict[tuple[str, int], float], float]:
        """(Seconds by variant and size, seconds of a load) that were measured under a profile; nothing if none were."""
        try:
            found = json.loads((self._measured / f"{key}.json").read_text())[profile]
            return {(variant, size): seconds for variant, size, seconds in found["costs"]}, found["load_seconds"]
        except (OSError, ValueError, TypeError, KeyError):
            return {}, 0.0

    def note_measured(
        self, key: str, profile: str, costs: Mapping[tuple[str, int], float], load_seconds: float
    ) -> None:
        """Remember what `measured` returns. Of two processes that do so at once one is forgotten."""
        note = self._measured / f"{key}.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            known = json.loads(note.read_text())
        except (OSError, ValueError):
            known = {}
        known[profile] = {"costs": [[*shape, cost] for shape, cost in costs.items()], "load_seconds": load_seconds}
        with self.workspace() as workspace:
            (workspace / "note").write_text(json.dumps(known))
            (workspace / "note").replace(note)

    def _bound(self, added: int) -> None:
        """Remove what is too much now that so many bytes were added.

        Counting looks at every entry, so it is done again only after an eighth of what was free is taken: the rest is
        for other processes that write here.
        """
        self._room -= added
        if self._most_bytes and self._room < 0:
            total = prune(self._entries, _MANIFEST, self._scratch, self._most_bytes)
            self._room = max(self._most_bytes - total, 0) // 8

    def _sweep(self, now: float) -> None:
        """Remove what processes that died while writing left behind."""
        for path in self._scratch.iterdir():
            try:
                if now - path.stat().st_mtime > _ABANDONED_SECONDS[is_occupied(path)]:
                    shutil.rmtree(path, ignore_errors=True)
            except FileNotFoundError:  # another process finished with it
                continue


def _cache_entry(path: Path, stored: StoredEntry, held: Lease | None) -> CacheEntry:
    return CacheEntry(
        path,
        stored.form,
        stored.weight_bytes,
        stored.reason,
        stored.batch_probe,
        stored.scratch_bytes,
        graphs=stored.graphs,
        warm={(run.variant, run.size): run.seconds for run in stored.runs},
        lease=held,
    )


def read_entry(path: Path) -> StoredEntry | None:
    """What the entry at `path` says of itself, if it is whole."""
    return _read(path, path.name)


def _read(path: Path, key: str) -> StoredEntry | None:
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        if manifest["key"] != key:
            return None
        if any(_fingerprint(path / name) != known for name, known in manifest["files"].items()):
            return None
        return StoredEntry.from_json(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _fingerprint(path: Path) -> str:
    """Size and digest of both ends: cheap for large weights, and no truncated or foreign file has it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(file.read(_FINGERPRINT_BYTES))
        file.seek(max(file.tell(), size - _FINGERPRINT_BYTES))
        digest.update(file.read())
    return f"{size}:{digest.hexdigest()}"


def _rename(source: Path, target: Path) -> bool:
    """Whether the directory could take the name; it cannot while another directory has it."""
    try:
        source.rename(target)
    except OSError:
        if target.exists():
            return False
        raise
    return True


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
