"""A model's specification as JSON: what the compile child is told, and what the key of an entry covers."""

from collections.abc import Mapping
from typing import Any

from app.domain.model import ModelSpec, Variant
from app.domain.tensors import TensorSpec


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


def _tensor_to_json(tensor: TensorSpec) -> list[Any]:
    return [tensor.name, tensor.datatype, list(tensor.shape), tensor.batch_axis]


def _tensor_from_json(data: list[Any]) -> TensorSpec:
    name, datatype, shape, batch_axis = data
    return TensorSpec(name, datatype, tuple(shape), batch_axis)
