"""A model's specification and sample in bytes: what the compile child is told, and what the key of an entry covers."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Tensors, TensorSpec


def spec_to_json(spec: ModelSpec) -> dict[str, Any]:
    """What compiling depends on, and no more: a changed description compiles nothing anew."""
    return {
        "batching": spec.batching,
        "inputs": [_tensor_to_json(tensor) for tensor in spec.inputs],
        "outputs": [_tensor_to_json(tensor) for tensor in spec.outputs],
        "variants": [
            {
                "key": variant.key,
                "sizes": list(variant.compiled_sizes),
                "dims": [[name, axis, extent] for (name, axis), extent in sorted(variant.dims.items())],
            }
            for variant in spec.variants
        ],
    }


def spec_from_json(data: Mapping[str, Any]) -> ModelSpec:
    """The part of a specification that `spec_to_json` keeps."""
    return ModelSpec(
        name="",
        batching=data["batching"],
        inputs=tuple(_tensor_from_json(tensor) for tensor in data["inputs"]),
        outputs=tuple(_tensor_from_json(tensor) for tensor in data["outputs"]),
        variants=tuple(
            Variant(
                variant["key"],
                tuple(variant["sizes"]),
                {(name, axis): extent for name, axis, extent in variant["dims"]},
            )
            for variant in data["variants"]
        ),
    )


def sample_to_npz(spec: ModelSpec, sample: Tensors) -> bytes:
    """One value for each executable input, in their order: a name may be one that `savez` keeps for itself.

    BYTES tensors become numpy byte strings, as in a bundle's own sample.
    """
    arrays = [sample[tensor.name] for tensor in spec.inputs]
    buffer = io.BytesIO()
    np.savez(buffer, *(array.astype(np.bytes_) if array.dtype.hasobject else array for array in arrays))
    return buffer.getvalue()


def sample_from_npz(spec: ModelSpec, file: Path) -> Tensors | None:
    """What `sample_to_npz` wrote; None for an empty file."""
    if not file.stat().st_size:
        return None
    with np.load(file, allow_pickle=False) as archive:
        return {
            tensor.name: archive[f"arr_{index}"].astype(tensor.dtype, copy=False)
            for index, tensor in enumerate(spec.inputs)
        }


def _tensor_to_json(tensor: TensorSpec) -> list[Any]:
    return [tensor.name, tensor.datatype, list(tensor.shape), tensor.batch_axis]


def _tensor_from_json(data: list[Any]) -> TensorSpec:
    name, datatype, shape, batch_axis = data
    return TensorSpec(name, datatype, tuple(shape), batch_axis)
