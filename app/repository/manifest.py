"""A bundle's declaration: `manifest.yaml`, completed from the graph and held against it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from math import prod
from pathlib import Path

from app.domain.batch_safety import BatchCheck
from app.domain.errors import BundleError
from app.domain.model import DEFAULT_SIZES, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.repository.agreement import check_tensors
from app.repository.files import MANIFEST_FILE, MODEL_FILE, bundle_files, name_fault
from app.repository.graph import describe
from app.repository.schema import FileKeys, ManifestKeys, TensorKeys, read_keys

#: The one variant of a model without `input_shapes`.
DEFAULT_VARIANT = "default"


#: (bundle's directory, its build file, what to build from: a file or that directory) → the ONNX file, in a directory of
#: its own. Raises `BundleError`.
Build = Callable[[Path, Path, Path], Path]


@dataclass(frozen=True)
class Manifest:
    """What a bundle declares: the model it is, and its ONNX file, wherever it lies; None for a meta model.

    `outside` are the files that belong to the bundle and do not lie in its directory. `hook_processes` is how many
    processes run its hooks; 0 where they run in the server's own.
    """

    spec: ModelSpec
    model_file: Path | None
    outside: tuple[Path, ...] = ()
    hook_processes: int = 0


def read_manifest(bundle_dir: Path, build: Build | None = None) -> Manifest:
    """Read and check the declaration of the bundle in a directory; the directory's name is the model's.

    Without a `manifest.yaml` everything is read from `model.onnx`. A model that is to be built is built with `build`.
    Raises `BundleError` naming file, key and remedy.
    """
    file = bundle_dir / MANIFEST_FILE
    keys = read_keys(file) if file.exists() else ManifestKeys(format_version="1")
    if keys.kind == "meta":
        return Manifest(_meta_spec(file, keys), None)
    model_file, outside = _locate(file, keys.file, build)
    hook_processes = (keys.hooks.processes or 1) if keys.hooks.isolation == "process" else 0
    return Manifest(_plain_spec(file, keys, model_file), model_file, outside, hook_processes)


def _meta_spec(file: Path, keys: ManifestKeys) -> ModelSpec:
    """A model without a graph, and so without tensors but those of its clients, variants and batches."""
    name, calls = file.parent.name, keys.calls or []
    for called in calls:
        if called == name:
            raise BundleError(f"{file}: calls: {called!r} is this model itself: a meta model calls plain ones only")
        if fault := name_fault(called):
            raise BundleError(f"{file}: calls: {fault}")
    client_outputs = _specs(keys.client_outputs, ())
    return ModelSpec(
        name=name,
        inputs=(),
        outputs=(),
        variants=(),
        client_inputs=_specs(keys.client_inputs, ()),
        client_outputs=client_outputs,
        batching=False,
        meta_models=tuple(calls),
        version=keys.version,
        labels=_labels(file, keys.labels, client_outputs),
        description=keys.description,
    )


def _plain_spec(file: Path, keys: ManifestKeys, model_file: Path) -> ModelSpec:
    graph_inputs, graph_outputs = describe(model_file)
    inputs = _specs(keys.executable_inputs, graph_inputs)
    outputs = _specs(keys.executable_outputs, graph_outputs)
    sizes = tuple(keys.batching.compiled_batch_sizes or DEFAULT_SIZES)
    check_tensors(file, "executable_inputs", inputs, graph_inputs, sizes)
    check_tensors(file, "executable_outputs", outputs, graph_outputs, sizes)
    client_outputs = _specs(keys.client_outputs, outputs)
    spec = ModelSpec(
        name=file.parent.name,
        inputs=inputs,
        outputs=outputs,
        variants=(),
        client_inputs=_specs(keys.client_inputs, inputs),
        client_outputs=client_outputs,
        batching=keys.batching.enabled,
        batch_check=BatchCheck(keys.batching.verify, keys.batching.rtol, keys.batching.atol),
        padding=keys.batching.padding,
        max_batch_size=keys.batching.max_batch_size,
        version=keys.version,
        labels=_labels(file, keys.labels, client_outputs),
        description=keys.description,
        fallback=keys.fallback,
        expose=keys.expose,
    )
    _check_batching(file, keys, spec, sizes)
    variants = _variants(file, keys.input_shapes, keys.executable_inputs, sizes if spec.coalescible else ())
    return replace(spec, variants=variants)


def _locate(file: Path, keys: FileKeys, build: Build | None) -> tuple[Path, tuple[Path, ...]]:
    """The model file, and the files outside the bundle that count as its own."""
    if keys.build is None:
        model_file = _find(file, keys.package, keys.path or MODEL_FILE)
        return model_file, () if keys.package is None else (model_file,)
    script = file.parent / keys.build
    if not script.is_file():
        raise BundleError(f"{file}: file.build: there is no {script}: put it there")
    source = file.parent if keys.path is None else _find(file, keys.package, keys.path)
    if build is None:
        raise BundleError(f"{file}: file.build: nothing is built here: load the bundle in a server, or name a path")
    model_file = build(file.parent, script, source)
    return model_file, tuple(path for _, path in bundle_files(model_file.parent))


def _find(file: Path, package: str | None, path: str) -> Path:
    """A file of the bundle or of a package, which is looked up in the installation's records and never imported."""
    if package is None:
        found = file.parent / path
        remedy = "put it there, or name another with the key file"
    else:
        try:
            found = Path(str(distribution(package).locate_file(path)))
        except PackageNotFoundError:
            raise BundleError(
                f"{file}: file.package: {package!r} is not installed: install it with pip install --no-deps"
            ) from None
        remedy = f"write the path inside {package} as it is installed, the top-level package first"
    if not found.is_file():
        raise BundleError(f"{file}: file: there is no {found}: {remedy}")
    return found


def _specs(declared: list[TensorKeys] | None, otherwise: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return otherwise if declared is None else tuple(tensor.spec() for tensor in declared)


def _check_batching(file: Path, keys: ManifestKeys, spec: ModelSpec, sizes: tuple[int, ...]) -> None:
    """Refuse batching keys that could not be honoured."""
    batching = keys.batching
    asked = "compiled_batch_sizes" if batching.compiled_batch_sizes else "max_batch_size"
    if batching.enabled and not spec.coalescible and (batching.compiled_batch_sizes or batching.max_batch_size):
        unbatched = [tensor.name for tensor in spec.outputs if tensor.batch_axis is None]
        which = f"output {unbatched[0]!r} has" if unbatched else "the inputs have"
        raise BundleError(
            f"{file}: batching.{asked}: {which} no batch axis, so nothing can be merged: mark the batch axis with n in "
            f"its shape, or remove the key"
        )
    if batching.max_batch_size is not None and batching.max_batch_size > sizes[-1]:
        raise BundleError(
            f"{file}: batching.max_batch_size: {batching.max_batch_size} is above the largest compiled batch size "
            f"{sizes[-1]}: add it to batching.compiled_batch_sizes, or lower it"
        )


def _variants(
    file: Path, shapes: list[dict[str, int]] | None, inputs: list[TensorKeys] | None, sizes: tuple[int, ...]
) -> tuple[Variant, ...]:
    """One variant per entry of `input_shapes`, which fixes the same variable letters in every entry."""
    if shapes is None:
        return (Variant(DEFAULT_VARIANT, sizes, {}),)
    if inputs is None:
        raise BundleError(f"{file}: input_shapes: needs executable_inputs: declare them, their letters name the axes")
    axes: dict[str, list[tuple[str, int]]] = {}
    for tensor in inputs:
        for axis, letter in enumerate(tensor.shape):
            if tensor.dims.get(letter) == -1:
                axes.setdefault(letter, []).append((tensor.name, axis))
    variants: dict[str, Variant] = {}
    for entry, shape in enumerate(shapes):
        where = f"{file}: input_shapes[{entry}]"
        _check_shape(where, shape, shapes[0], axes)
        key = ",".join(f"{letter}={shape[letter]}" for letter in sorted(shape))
        if key in variants:
            raise BundleError(f"{where}: {key} stands twice: remove one")
        dims = {place: extent for letter, extent in shape.items() for place in axes[letter]}
        variants[key] = Variant(key, sizes, dims)
    return tuple(variants.values())


def _check_shape(
    where: str, shape: Mapping[str, int], first: Mapping[str, int], axes: Mapping[str, list[tuple[str, int]]]
) -> None:
    if not shape:
        raise BundleError(f"{where}: is empty: give the extent of a variable axis, as in {{h: 224}}")
    for letter in shape:
        if letter not in axes:
            remedy = f"write one of {', '.join(sorted(axes))}" if axes else "write -1 for it in dims"
            raise BundleError(f"{where}: {letter!r} is not a variable axis of executable_inputs: {remedy}")
    if shape.keys() != first.keys():
        raise BundleError(f"{where}: fixes other axes than input_shapes[0]: give {', '.join(first)} in every entry")


def _labels(
    file: Path, labels: Mapping[str, list[str]] | None, outputs: tuple[TensorSpec, ...]
) -> Mapping[str, tuple[str, ...]] | None:
    """The labels by client output, as many as a row of it has elements where that is known."""
    if labels is None:
        return None
    by_name = {tensor.name: tensor for tensor in outputs}
    for name, texts in labels.items():
        if name not in by_name:
            raise BundleError(f"{file}: labels.{name}: no such client output: write one of {', '.join(by_name)}")
        tensor = by_name[name]
        row = [extent for axis, extent in enumerate(tensor.shape) if axis != tensor.batch_axis]
        if -1 not in row and len(texts) != prod(row):
            raise BundleError(f"{file}: labels.{name}: {len(texts)} labels for {prod(row)} elements: give one for each")
    return {name: tuple(texts) for name, texts in labels.items()}
