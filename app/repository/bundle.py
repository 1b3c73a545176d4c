"""A bundle, read from disk: specification, hooks and where its graph is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors
from app.repository.files import (
    HOOKS_FILE,
    MANIFEST_FILE,
    Digest,
    bundle_files,
    digest_file,
    digest_files,
    is_bundle,
    name_fault,
    why_no_bundle,
)
from app.repository.hooks import Hooks, load_hooks
from app.repository.manifest import Build, read_manifest
from app.repository.sample import read_sample


@dataclass(frozen=True)
class Bundle:
    """A bundle as it was on disk when it was read; `digest` changes when any of its files does.

    `model_file` is the ONNX file (None for a meta model), wherever it lies; `sample` holds executable inputs that look
    like real ones, where the bundle has some.
    """

    path: Path
    spec: ModelSpec
    hooks: Hooks
    digest: str
    model_file: Path | None
    sample: Tensors | None = field(default=None, compare=False)


#: Starts a number of processes for the hooks of the bundle in a directory.
Isolate = Callable[[Path, int], Hooks]


def load_bundle(
    path: Path, isolate: Isolate | None = None, build: Build | None = None, digest: Digest = digest_file
) -> Bundle:
    """Read and check the bundle in a directory and import its hooks; slow, every byte is read. Raises `BundleError`.

    The model has the name of the directory entry, also where that is a link. Hooks that ask for processes of their own
    get them from `isolate`, and are then to be closed; without it they run in this process. A model that is to be made
    first is made by `build`, or was before; without it such a bundle is refused. `digest` may know its files already.
    """
    path = path.absolute()
    if fault := name_fault(path.name):
        raise BundleError(f"{path}: {fault}")
    if not path.is_dir():
        raise BundleError(f"{path}: is no directory: a bundle is a directory with a model.onnx or a manifest.yaml")
    try:
        return _load(path, isolate, build, digest)
    except OSError as error:
        raise BundleError(
            f"{error.filename or path}: cannot be read ({error.strerror}): copy the bundle again"
        ) from error


def _load(path: Path, isolate: Isolate | None, build: Build | None, digest: Digest) -> Bundle:
    if not is_bundle(path):
        raise BundleError(f"{path}: {why_no_bundle(path)}")
    manifest = read_manifest(path, build)
    processes = manifest.hook_processes
    hooks = isolate(path, processes) if isolate is not None and processes else load_hooks(path)
    try:
        _check_hooks(path, manifest.spec, hooks)
        whole = digest_files([*bundle_files(path), *[("", file) for file in manifest.outside]], digest)
        sample = None if manifest.model_file is None else read_sample(path, manifest.spec)
    except BaseException:
        hooks.close()
        raise
    return Bundle(path, manifest.spec, hooks, whole, manifest.model_file, sample)


def _check_hooks(path: Path, spec: ModelSpec, hooks: Hooks) -> None:
    """Refuse what the hooks and the manifest cannot both mean."""
    if spec.meta_models is not None:
        _check_run(path / HOOKS_FILE, hooks)
        return
    if hooks.run is not None:
        raise BundleError(f"{path / HOOKS_FILE}: run belongs to a meta model (kind: meta): remove it")
    if hooks.preprocess is None and spec.client_inputs != spec.inputs:
        raise BundleError(
            f"{path / MANIFEST_FILE}: client_inputs: differ from the executable inputs and no hook converts them: "
            f"define preprocess in {HOOKS_FILE}, or remove the key"
        )
    if hooks.postprocess is None and spec.client_outputs != spec.outputs:
        raise BundleError(
            f"{path / MANIFEST_FILE}: client_outputs: differ from the executable outputs and no hook converts them: "
            f"define postprocess in {HOOKS_FILE}, or remove the key"
        )


def _check_run(file: Path, hooks: Hooks) -> None:
    """A meta model is its `run`, and nothing else."""
    if hooks.run is None:
        raise BundleError(f"{file}: a meta model needs run(inputs, call) there: define it")
    for name, hook in (("preprocess", hooks.preprocess), ("postprocess", hooks.postprocess)):
        if hook is not None:
            raise BundleError(f"{file}: {name} belongs to a plain model: call it from run, under another name")
