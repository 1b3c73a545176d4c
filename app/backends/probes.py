"""Inputs to try a model with, when nobody has sent any yet."""

from collections.abc import Iterator

import numpy as np

from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Array, Tensors, TensorSpec

#: Extents to try where an axis is free. Some models need more than 8: a pyramid of convolutions eats it up.
FREE_EXTENTS = (8, 64)

_SEED = 20


def probes(spec: ModelSpec, variant: Variant, rows: int, sample: Tensors | None) -> Iterator[Tensors]:
    """Complete inputs of `rows` rows, the most telling first: the sample, random values, zeros."""
    if sample is not None and (sampled := _from_sample(spec, variant, rows, sample)):
        yield sampled
    for extent in FREE_EXTENTS:
        shapes = {tensor.name: _shape(tensor, variant, rows, extent) for tensor in spec.inputs}
        generator = np.random.default_rng(_SEED)
        yield {tensor.name: _random(tensor, shapes[tensor.name], generator) for tensor in spec.inputs}
        yield {tensor.name: _zeros(tensor, shapes[tensor.name]) for tensor in spec.inputs}


def _shape(tensor: TensorSpec, variant: Variant, rows: int, extent: int) -> tuple[int, ...]:
    return tuple(
        rows if axis == tensor.batch_axis else variant.dims.get((tensor.name, axis), extent if size == -1 else size)
        for axis, size in enumerate(tensor.shape)
    )


def _from_sample(spec: ModelSpec, variant: Variant, rows: int, sample: Tensors) -> Tensors | None:
    """Row 0 of the sample, repeated; None where the sample is of another variant."""
    inputs = {}
    for tensor in spec.inputs:
        array = sample[tensor.name]
        if tensor.batch_axis is not None:
            array = np.repeat(np.take(array, [0], tensor.batch_axis), rows, tensor.batch_axis)
        wanted = _shape(tensor, variant, rows, -1)
        if any(extent not in (-1, actual) for extent, actual in zip(wanted, array.shape, strict=True)):
            return None
        inputs[tensor.name] = np.asarray(array, order="C")
    return inputs


def _random(tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    if tensor.datatype == "BYTES":
        return np.full(shape, b"a", np.object_)
    if tensor.datatype == "BF16":
        bits = generator.standard_normal(shape, np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).reshape(shape)
    if tensor.dtype.kind == "f":
        return np.asarray(generator.standard_normal(shape)).astype(tensor.dtype)
    return np.asarray(generator.integers(0, 2, shape)).astype(tensor.dtype)


def _zeros(tensor: TensorSpec, shape: tuple[int, ...]) -> Array:
    return np.full(shape, b"", np.object_) if tensor.datatype == "BYTES" else np.zeros(shape, tensor.dtype)
