"""Inputs to try a model with, when nobody has sent any yet."""

from collections.abc import Iterator

import numpy as np

from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Array, Tensors, TensorSpec

#: Extents to try where an axis is free. Some models need more than 8: a pyramid of convolutions eats it up.
FREE_EXTENTS = (8, 64)

_SEED = 20

#: Random rows to make batches of.
_ROWS = 7

#: Texts for 0 and 1, in the rows of even and of odd number.
Texts = tuple[tuple[bytes, bytes], tuple[bytes, bytes]]
_DIGITS: Texts = ((b"0", b"1"), (b"0", b"1"))
_WORDS: Texts = ((b"0", b"1"), (b"0 1,1;0|1\t0\n1-1/0.1_0:1", b"1 0,0;1|0\t1\n0-0/1.0_1:0"))


def probes(spec: ModelSpec, variant: Variant, rows: int, sample: Tensors | None) -> Iterator[Tensors]:
    """Complete inputs of `rows` rows, the most telling first: the sample, random values, zeros."""
    if sample is not None and (sampled := _from_sample(spec, variant, rows, sample)):
        yield sampled
    for extent in FREE_EXTENTS:
        shapes = {tensor.name: _shape(tensor, variant, rows, extent) for tensor in spec.inputs}
        generator = np.random.default_rng(_SEED)
        yield {tensor.name: _random(tensor, shapes[tensor.name], generator) for tensor in spec.inputs}
        yield {tensor.name: _zeros(tensor, shapes[tensor.name]) for tensor in spec.inputs}


def pools(spec: ModelSpec, variant: Variant, sample: Tensors | None) -> Iterator[Tensors]:
    """Rows to make batches of, the most telling first: row 0, others that differ from it, and zeros as the last.

    They are those of the sample; else random floats, and integers 0 and 1, each row the opposite of the one before, so
    that no two neighbours are equal. Text is a digit in every other row and many words in those between: what is cut at
    separators has as many parts as the longest has. Where words are not taken, it is digits. Inputs without a batch
    axis are complete.
    """
    if sample is not None and (pool := _sample_pool(spec, variant, sample)):
        yield pool
    for extent in FREE_EXTENTS:
        for texts in (_WORDS, _DIGITS) if spec.text_inputs else (_DIGITS,):
            generator = np.random.default_rng(_SEED)
            yield _with_zeros(spec, {e.name: _alternating(e, variant, extent, generator, texts) for e in spec.inputs})


def _sample_pool(spec: ModelSpec, variant: Variant, sample: Tensors) -> Tensors | None:
    """The first row of the sample and all that differ from it; random ones where none does."""
    if not _fits(spec, variant, sample):
        return None
    count = spec.rows_of(sample)
    batched = [tensor for tensor in spec.inputs if tensor.batch_axis is not None]
    rows = {each.name: np.moveaxis(sample[each.name], each.batch_axis or 0, 0) for each in batched}
    others = [row for row in range(1, count) if any(not _same(each[0], each[row]) for each in rows.values())]
    if others:
        pool = {each.name: np.take(sample[each.name], [0, *others], each.batch_axis) for each in batched}
    else:
        generator = np.random.default_rng(_SEED)
        pool = {each.name: _beside(each, sample[each.name], generator) for each in batched}
    return _with_zeros(spec, {**sample, **pool})


def _beside(tensor: TensorSpec, array: Array, generator: np.random.Generator) -> Array:
    """Row 0 and random ones of its shape."""
    axis = tensor.batch_axis or 0
    first = np.take(array, [0], axis)
    return np.concatenate([first, _random_rows(tensor, first.shape, generator)], axis)


def _alternating(
    tensor: TensorSpec, variant: Variant, extent: int, generator: np.random.Generator, texts: Texts
) -> Array:
    shape = _shape(tensor, variant, 1, extent)
    if tensor.batch_axis is None:
        return _random(tensor, shape, generator)
    return _random_rows(tensor, shape, generator, texts)


def _random_rows(
    tensor: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator, texts: Texts = _DIGITS
) -> Array:
    """Random rows, given the shape of one: no two that follow one another are equal."""
    axis = tensor.batch_axis or 0
    if tensor.datatype == "BF16" or tensor.dtype.kind == "f":
        return np.concatenate([_random(tensor, shape, generator) for _ in range(_ROWS)], axis)
    bits = generator.integers(0, 2, shape)
    rows: list[Array] = [(bits + number) % 2 for number in range(_ROWS)]
    if tensor.datatype == "BYTES":
        rows = [np.array(texts[number % 2], np.object_)[row] for number, row in enumerate(rows)]
    return np.concatenate(rows, axis).astype(tensor.dtype)


def _with_zeros(spec: ModelSpec, rows: Tensors) -> Tensors:
    """The rows and one of zeros, as padding has it."""
    pool = {}
    for tensor in spec.inputs:
        array = rows[tensor.name]
        if tensor.batch_axis is not None:
            one = np.take(array, [0], tensor.batch_axis).shape
            array = np.concatenate([array, _zeros(tensor, one)], tensor.batch_axis)
        pool[tensor.name] = np.asarray(array, order="C")
    return pool


def _same(left: Array, right: Array) -> bool:
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))


def _fits(spec: ModelSpec, variant: Variant, sample: Tensors) -> bool:
    """Whether the sample is of a variant's shape."""
    return all(sample[name].shape[axis] == extent for (name, axis), extent in variant.dims.items())


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
