"""What lies in the model directories, told cheaply, and what changed since the last look."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from app.repository.files import MODEL_FILE, bundle_files, is_bundle, listed, name_fault, of_triton, why_no_bundle


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle on disk. Equal signatures mean the same files, wherever their directory lies now.

    The same is what has the same device, inode, size and times under the same name in the bundle. So a directory that
    is moved within a file system stays what it was, and a copy, or a move to another file system, is other files. Times
    of modification alone would not do: images and archives set them all to one. The time of change is the system's own,
    and tells when a file of another content takes the inode. A network file system that numbers files or devices anew
    makes them other files: loading what is in the compile cache is cheap, and serving the wrong file is not.
    """

    path: Path
    signature: str


@dataclass(frozen=True)
class Scan:
    """One look at the model directories: the bundles by model name, and what is wrong with other paths.

    A bundle whose directory or root cannot be read just now stays as it was last seen, and has a problem. What is
    `passed_over` lies where bundles are looked for and is none; the text says what would make it one. Names that begin
    with `.` or `_` are for other things, and never told of.
    """

    bundles: Mapping[str, Found]
    problems: Mapping[Path, str]
    passed_over: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Added:
    """A name that had no bundle, or whose bundle now has another name."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Changed:
    """Other files under the same name, or the same files in another place."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Removed:
    """A bundle whose files are gone."""

    name: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same files under another name."""

    name: str
    to: str
    path: Path


Change = Added | Changed | Removed | Renamed


def scan(roots: Iterable[Path], previous: Scan | None = None) -> Scan:
    """Look for bundles in the roots; where two hold the same name, the earlier root wins. Raises nothing."""
    before = previous.bundles if previous is not None else {}
    bundles: dict[str, Found] = {}
    problems: dict[Path, str] = {}
    passed_over: dict[Path, str] = {}
    for root in roots:
        for name, found in _scan_root(root, before, problems, passed_over).items():
            if name in bundles:
                problems[found.path] = f"{bundles[name].path} has the same model name: rename one of them"
            else:
                bundles[name] = found
    return Scan(bundles, problems, passed_over)


def diff(old: Mapping[str, Found], new: Mapping[str, Found]) -> tuple[Change, ...]:
    """What turns `old` into `new`: removals first, then renames (to be made at once: they may form a chain or a
    ring), then changes, then additions; each kind by name.
    """
    gone = {name: found for name, found in old.items() if not _same_files(found, new.get(name))}
    come = {name: found for name, found in new.items() if not _same_files(found, old.get(name))}
    vacant: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(gone, reverse=True):
        vacant[gone[name].signature].append(name)
    renamed: list[Renamed] = []
    for name in sorted(come):
        found = come[name]
        if vacant[found.signature]:
            former = vacant[found.signature].pop()
            del gone[former], come[name]
            renamed.append(Renamed(former, name, found.path))
    moved = {name for name, found in new.items() if _same_files(found, old.get(name)) and found != old[name]}
    return (
        *(Removed(name) for name in sorted(gone.keys() - come.keys())),
        *sorted(renamed, key=lambda change: change.name),
        *(Changed(name, new[name].path) for name in sorted((gone.keys() & come.keys()) | moved)),
        *(Added(name, new[name].path) for name in sorted(come.keys() - gone.keys())),
    )


def _same_files(found: Found, other: Found | None) -> bool:
    return other is not None and found.signature == other.signature


def _scan_root(
    root: Path, before: Mapping[str, Found], problems: dict[Path, str], passed_over: dict[Path, str]
) -> dict[str, Found]:
    """The bundles of one root by model name; the last two receive what is wrong with it or in it."""
    try:
        names, loose = listed(root)
        told = _about_root(root, names, loose)
    except OSError as error:
        problems[root] = f"cannot be read ({error.strerror}): its models stay as they were"
        return {name: found for name, found in before.items() if found.path.parent == root}
    passed_over |= told
    bundles: dict[str, Found] = {}
    for name in names:
        path = root / name
        try:
            if not is_bundle(path):
                if not name.startswith("_"):
                    passed_over[path] = why_no_bundle(path)
                continue
            found = Found(path, _signature(path))
        except OSError as error:
            problems[path] = f"cannot be read ({error.strerror}): its model stays as it was"
            if name not in before or before[name].path != path:
                continue
            found = before[name]
        if fault := name_fault(name):
            problems[path] = fault
        else:
            bundles[name] = found
    return bundles


def _about_root(root: Path, folders: Sequence[str], loose: Sequence[str]) -> dict[Path, str]:
    """What is passed over of a root itself, and of its files. Raises `OSError`."""
    if is_bundle(root):
        holder = root.absolute().parent
        return {root: f"is a bundle, and no directory of bundles: name the directory that it lies in, {holder}"}
    if (hint := of_triton(root)) is not None:
        return {root: hint}
    if not folders and not loose:
        return {root: f"holds no bundle: put a directory with a {MODEL_FILE} into it"}
    return {
        root / name: f"is no bundle, which is a directory: put it at {root / Path(name).stem / MODEL_FILE}, or let "
        f"`inference-server pack` do it"
        for name in loose
    }


def _signature(bundle_dir: Path) -> str:
    signature = sha256()
    for name, path in bundle_files(bundle_dir):
        stat = path.stat()
        facts = (name, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        signature.update(os.fsencode("".join(f"{fact}\0" for fact in facts)))
    return signature.hexdigest()


def find_bundles(paths: Sequence[Path], include: Sequence[str]) -> tuple[list[Path], list[str], list[str]]:
    """The bundles that paths are, or hold under an included name, what is wrong with paths, and what is passed over."""
    folders = [path.absolute() for path in paths if path.is_dir()]
    bundles = [path for path in folders if is_bundle(path)]
    look = scan([path for path in folders if path not in bundles])
    faults = [f"{path}: is no directory: name a bundle, or what holds bundles" for path in paths if not path.is_dir()]
    faults += [f"{path}: {fault}" for path, fault in look.problems.items()]
    found = [each.path for name, each in sorted(look.bundles.items()) if any(fnmatchcase(name, p) for p in include)]
    return bundles + found, faults, [f"{path}: {fault}" for path, fault in look.passed_over.items()]
