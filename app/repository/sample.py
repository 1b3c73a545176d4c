"""The optional `sample.npz` of a bundle: executable inputs that look like real ones."""

from collections.abc import Iterable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from app.domain.errors import BundleError, InvalidRequest
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors, TensorSpec
from app.repository.files import SAMPLE_FILE


def read_sample(bundle_dir: Path, spec: ModelSpec) -> Tensors | None:
    """One value for every executable input, of one row count; None without the file.

    BYTES tensors are stored as numpy byte strings (`S`), BF16 tensors as `uint16`. Raises `BundleError`.
    """
    file = bundle_dir / SAMPLE_FILE
    if not file.exists():
        return None
    try:
        with file.open("rb") as stream:
            arrays = np.load(stream, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("a single array, without a name")
            stored = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise BundleError(f"{file}: not an npz file of plain arrays ({error}): write it with numpy.savez") from error
    if stored.keys() != spec.inputs_by_name.keys():
        raise BundleError(f"{file}: holds {_list(stored)}: store the executable inputs {_list(spec.inputs_by_name)}")
    sample = {name: _tensor(file, tensor, stored[name]) for name, tensor in spec.inputs_by_name.items()}
    try:
        spec.rows_of(sample)
    except InvalidRequest as error:
        raise BundleError(f"{file}: {error.message}: store one row count, at least one row") from error
    return sample


def _tensor(file: Path, spec: TensorSpec, array: Array) -> Array:
    if spec.datatype == "BYTES" and array.dtype.kind == "S":
        array = array.astype(np.object_)
    if array.dtype != spec.dtype or not spec.accepts(array.shape):
        raise BundleError(
            f"{file}: {spec.name!r} is {array.dtype} {list(array.shape)}: store {spec.datatype} {list(spec.shape)}"
        )
    return array


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
