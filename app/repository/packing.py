"""Writes a bundle from an ONNX file: its files, and a manifest of what the graph says and what is to be decided."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase

from app.domain.errors import BundleError
from app.domain.model import DEFAULT_SIZES
from app.domain.tensors import TensorSpec
from app.repository.files import MANIFEST_FILE, MODEL_FILE, name_fault
from app.repository.graph import describe
from app.repository.outline import read_outline
from app.repository.schema import BATCH_LETTERS

#: Letters by which axes go when nothing suggests another, in this order.
_LETTERS = [letter for letter in "cdhwstfe" + ascii_lowercase if letter not in BATCH_LETTERS]

#: By tensor, the name of each of its dims in the graph; empty where it has none, or is a number.
_DimNames = Mapping[str, tuple[str, ...]]


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """An empty directory with the name of `target`, beside it; it becomes `target` unless the block raises.

    Raises `BundleError` where `target` holds something already, or has no name for a model.
    """
    target = target.absolute()
    if fault := name_fault(target.name):
        raise BundleError(f"{target}: {fault}")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BundleError(f"{target}: is there already: remove it, or name another directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".packing-", dir=target.parent))  # a server that looks passes it over
    try:
        path = aside / target.name
        path.mkdir()
        yield path
        path.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def copy_model(model_file: Path, external: Sequence[str], path: Path) -> None:
    """Copy a model, and the external data that it names, into a bundle. Raises `BundleError` or `OSError`."""
    for name in external:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BundleError(f"{model_file}: its external data {name!r} lies outside its folder: export it again")
        if Path(name) == Path(MODEL_FILE) or name == MANIFEST_FILE:
            raise BundleError(f"{model_file}: its external data cannot be called {name!r} in a bundle: export it again")
        source = model_file.parent / name
        if not source.is_file():
            raise BundleError(f"{model_file}: its external data {source} is missing: put it there")
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path / name)
    shutil.copyfile(model_file, path / MODEL_FILE)


def write_manifest(path: Path, origin: str, unbatched: str = "") -> None:
    """Write the manifest of a bundle whose model is there. Raises `BundleError` for a graph that cannot be served.

    `origin` says where the model came from; `unbatched` why it is not to be batched, empty where it may be.
    """
    (path / MANIFEST_FILE).write_text(_manifest(path / MODEL_FILE, origin, unbatched), encoding="utf-8")


def _manifest(model_file: Path, origin: str, unbatched: str) -> str:
    inputs, outputs = describe(model_file)
    names = _dim_names(model_file)
    letters: dict[str, str] = {}
    lines = [
        "# Written by `inference-server pack`. What only a human can decide is said where it belongs, and whether it",
        "# holds is for `inference-server check` to say.",
        'format_version: "1"',
        'description: ""',
        'licence: ""',
        f"provenance: {_quoted(origin)}",
        "",
        "# The tensors of the graph: one letter an axis, n for the batch. Decide whether every n is one: rows along it",
        "# must not depend on one another. An axis that is time, say, takes another letter, and -1 in dims.",
        "executable_inputs:",
        *[_tensor(each, names, letters) for each in inputs],
        "executable_outputs:",
        *[_tensor(each, names, letters) for each in outputs],
        "",
        *_shapes(inputs, names, letters),
        *_batching(unbatched),
        "",
        "# Decide what the elements of a row of an output are called.",
        f"# labels: {{{_quoted(outputs[0].name)}: [one, two]}}",
        "",
        "# Decide whether clients see other tensors than the graph: client_inputs, client_outputs, and hooks.py.",
    ]
    return "\n".join(lines) + "\n"


def _tensor(tensor: TensorSpec, names: _DimNames, letters: dict[str, str]) -> str:
    dims = _letters(tensor, names, letters)
    shape = "".join("n" if axis == tensor.batch_axis else letter for axis, letter in enumerate(dims))
    extents = ", ".join(
        f"{letter}: {extent}"
        for axis, (letter, extent) in enumerate(zip(dims, tensor.shape, strict=True))
        if axis != tensor.batch_axis
    )
    text = f"name: {_quoted(tensor.name)}, dtype: {tensor.datatype}, shape: {_quoted(shape)}"
    return f"  - {{{text}, dims: {{{extents}}}}}" if extents else f"  - {{{text}}}"


def _letters(tensor: TensorSpec, names: _DimNames, letters: dict[str, str]) -> list[str]:
    """A letter for each axis. What the graph calls by one name has one letter in all tensors, and nothing else has it.

    `letters` holds those that are taken so. Raises `BundleError` where the alphabet does not do.
    """
    found: list[str] = []
    for axis, (extent, name) in enumerate(zip(tensor.shape, names[tensor.name], strict=True)):
        if axis == tensor.batch_axis:
            found.append("n")
            continue
        known = name or f"{tensor.name}[{axis}]"
        letter = letters.get(known) or _free_letter(name, {*found, *letters.values()})
        if extent == -1:
            letters[known] = letter
        found.append(letter)
    return found


def _free_letter(name: str, taken: set[str]) -> str:
    wanted = [letter for letter in name[:1].lower() if letter in _LETTERS]
    for letter in [*wanted, *_LETTERS]:
        if letter not in taken:
            return letter
    raise BundleError("the graph has more axes than there are letters: write the manifest by hand")


def _dim_names(model_file: Path) -> _DimNames:
    """Outputs whose shape only inference tells have names for nothing."""
    outline = read_outline(model_file)
    inputs, outputs = describe(model_file)
    ranks = {each.name: len(each.shape) for each in (*inputs, *outputs)}
    named = {
        value.name: tuple(dim.dim_param for dim in value.type.tensor_type.shape.dim)
        for value in (*outline.inputs, *outline.outputs)
    }
    return {name: named[name] if len(named[name]) == rank else ("",) * rank for name, rank in ranks.items()}


def _shapes(inputs: Sequence[TensorSpec], names: _DimNames, letters: Mapping[str, str]) -> list[str]:
    """What `input_shapes` could say, where an input has axes that are open."""
    free = {
        letter
        for tensor in inputs
        for axis, letter in enumerate(_letters(tensor, names, dict(letters)))
        if axis != tensor.batch_axis and tensor.shape[axis] == -1
    }
    if not free:
        return []
    extents = ", ".join(f"{letter}: 64" for letter in sorted(free))
    return [
        "# Decide which extents requests will have: they are compiled in. Without this these axes take any.",
        f"# input_shapes: [{{{extents}}}]",
        "",
    ]


def _batching(unbatched: str) -> list[str]:
    if unbatched:
        return [
            "# Requests run alone, since a batch did not run:",
            f"#   {unbatched}",
            "batching: {enabled: false}",
        ]
    sizes = ", ".join(map(str, DEFAULT_SIZES))
    return [
        "# Decide how many rows share an execution. `padding: repeat` is for models that make NaN of rows of zeros.",
        f"# batching: {{compiled_batch_sizes: [{sizes}], padding: zeros}}",
    ]


def _quoted(text: str) -> str:
    """A YAML string, whatever is in it: JSON is YAML."""
    quoted = json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
