"""Which files make a bundle, what to say of a directory that is none, and which names a model may have."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

HOOKS_FILE = "hooks.py"
MANIFEST_FILE = "manifest.yaml"
MODEL_FILE = "model.onnx"
SAMPLE_FILE = "sample.npz"

#: What Triton keeps beside the numbered directories of a model; it is not read.
TRITON_FILE = "config.pbtxt"

MAX_NAME_BYTES = 255

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def readable_path(path: Path | str) -> str:
    """A path as text, also where its bytes are no UTF-8, which neither JSON nor a log can hold."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def name_fault(name: str) -> str | None:
    """Why a model cannot have this name; None if it can. Letters are ASCII, so bytes are characters."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_BYTES:
        return (
            f"{name[:MAX_NAME_BYTES]!r} is no model name: use letters, digits, '.', '_' and '-', a letter or digit "
            f"first, at most {MAX_NAME_BYTES}"
        )
    if name == "stats":
        return "'stats' is no model name: /v2/models/stats are the statistics of all models"
    return None


def is_bundle(directory: Path) -> bool:
    """Whether a directory holds a manifest or a model. Raises `OSError` when that cannot be told."""
    return any(_exists(directory / name) for name in (MANIFEST_FILE, MODEL_FILE))


def why_no_bundle(directory: Path) -> str:
    """Why a directory that holds neither manifest nor model is no bundle, and what would make it one.

    Raises `OSError`.
    """
    if models := listed(directory)[1]:
        return f"is no bundle: rename {models[0]} to {MODEL_FILE}, or name it in a {MANIFEST_FILE} (file: {models[0]})"
    return of_triton(directory) or (
        f"is no bundle: it has neither {MODEL_FILE} nor {MANIFEST_FILE}; where it holds bundles itself, name it in "
        f"model_dirs, and where it is for something else, begin its name with an underscore"
    )


def of_triton(directory: Path) -> str | None:
    """How a model becomes a bundle that lies there as Triton lays it out; None where none does. Raises `OSError`.

    Its versions are numbered directories, with nothing else beside them that is not told in its configuration.
    """
    folders, configured = listed(directory)[0], _exists(directory / TRITON_FILE)
    versions = sorted((name for name in folders if name.isdecimal()), key=int, reverse=True)
    held = [f"{version}/{name}" for version in versions for name in listed(directory / version)[1]]
    if held and (configured or len(versions) == len(folders)):
        return (
            f"is no bundle, but a model as Triton lays it out: `inference-server pack {directory / held[0]} "
            f"DIR/{directory.name}` writes a bundle of it, DIR being another directory, to be named in model_dirs"
        )
    if configured:
        return f"is no bundle, but a model as Triton lays it out ({TRITON_FILE}), and without an ONNX file: export it"
    return None


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """Directories in a directory, and ONNX files, by name. Raises `OSError`."""
    with os.scandir(folder) as entries:
        shown = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    folders = [entry.name for entry in shown if entry.is_dir()]
    return folders, [entry.name for entry in shown if entry.name.endswith(".onnx") and entry.is_file()]


def bundle_files(bundle_dir: Path) -> list[tuple[str, Path]]:
    """Every file of a bundle, by its name relative to the directory, in the order of the names.

    Bytecode and everything whose name begins with a dot is left out; linked directories are not entered. Raises
    `OSError` for a directory that cannot be read.
    """
    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(bundle_dir, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        paths = [Path(folder, name) for name in files if not name.startswith(".")]
        found += [(path.relative_to(bundle_dir).as_posix(), path) for path in paths]
    return sorted(found)


#: SHA-256 of a file, in hex. Raises `OSError`.
Digest = Callable[[Path], str]


def digest_file(file: Path) -> str:
    """SHA-256 of a file, in hex, by reading it. Raises `OSError`."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_files(files: Iterable[tuple[str, Path]], digest: Digest = digest_file) -> str:
    """SHA-256 over names and contents, in hex. Raises `OSError` for a file that cannot be read."""
    whole = hashlib.sha256()
    for name, file in files:
        whole.update(os.fsencode(name) + b"\0" + bytes.fromhex(digest(file)))
    return whole.hexdigest()


def _exists(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _raise(error: OSError) -> None:
    raise error
