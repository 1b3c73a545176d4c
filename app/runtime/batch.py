"""Rows in and out of batches: pure numpy, no state."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from app.domain.batch_safety import Padding
from app.domain.errors import ExecutionFailed
from app.domain.tensors import Array, Tensors, TensorSpec


def assemble(
    parts: Sequence[Tensors], specs: Sequence[TensorSpec], rows: int, size: int, padding: Padding = "zeros"
) -> Tensors:
    """One set of input tensors with `size` rows from the `rows` rows of `parts`, in order.

    Inputs without a batch axis are those of the first part: parts merge only when theirs are equal. A lone part that
    fills the size is passed through without a copy.
    """
    first = parts[0]
    if len(parts) == 1 and rows == size:
        return {spec.name: _runnable(first[spec.name]) for spec in specs}
    return {
        spec.name: _runnable(first[spec.name])
        if spec.batch_axis is None
        else _stack([part[spec.name] for part in parts], spec, rows, size, padding)
        for spec in specs
    }


def scatter(
    outputs: Tensors, specs: Sequence[TensorSpec], rows: Sequence[int], size: int, *, batched: bool
) -> Sequence[Tensors]:
    """The outputs of one execution as one set of views per request; padding rows are left behind.

    Raises `ExecutionFailed` when an output's batch extent is not `size`: its axis is not a batch axis, and slicing it
    would hand one caller's rows to another.
    """
    if not batched:
        return [outputs]
    for spec in specs:
        extent = outputs[spec.name].shape[spec.batch_axis or 0]
        if extent != size:
            raise ExecutionFailed(
                f"output {spec.name!r} has extent {extent} on its batch axis where the batch has size {size}"
            )
    if len(rows) == 1 and rows[0] == size:
        return [outputs]
    bounds = list(pairwise(accumulate(rows, initial=0)))
    parts: list[dict[str, Array]] = [{} for _ in rows]
    for spec in specs:
        name, array, axis = spec.name, outputs[spec.name], spec.batch_axis or 0
        before = (slice(None),) * axis
        for part, (start, end) in zip(parts, bounds, strict=True):
            part[name] = array[start:end] if axis == 0 else array[(*before, slice(start, end))]
    return parts


def cut(tensors: Tensors, specs: Sequence[TensorSpec], rows: Sequence[int]) -> Iterator[Tensors]:
    """Cut inputs along their batch axes into pieces of the given row counts (views; whole where there is no axis)."""
    for start, end in pairwise(accumulate(rows, initial=0)):
        yield {
            spec.name: tensors[spec.name]
            if spec.batch_axis is None
            else tensors[spec.name][(slice(None),) * spec.batch_axis + (slice(start, end),)]
            for spec in specs
        }


def join(parts: Sequence[Tensors], specs: Sequence[TensorSpec]) -> Tensors:
    """Join the outputs of pieces along each output's own batch axis, in order."""
    if len(parts) == 1:
        return parts[0]
    return {spec.name: np.concatenate([part[spec.name] for part in parts], axis=spec.batch_axis or 0) for spec in specs}


def _stack(arrays: Sequence[Array], spec: TensorSpec, rows: int, size: int, padding: Padding) -> Array:
    axis = spec.batch_axis or 0
    if rows == size:
        return np.concatenate(arrays, axis=axis)
    shape = list(arrays[0].shape)
    shape[axis] = size
    batch = np.empty(shape, dtype=arrays[0].dtype)
    before = (slice(None),) * axis
    real, rest = (*before, slice(0, rows)), (*before, slice(rows, size))
    np.concatenate(arrays, axis=axis, out=batch[real])
    if padding == "repeat":
        batch[rest] = batch[(*before, slice(rows - 1, rows))]
    else:
        batch[rest] = b"" if batch.dtype.hasobject else 0
    return batch


def _runnable(array: Array) -> Array:
    """The array as the backend may read it in place: contiguous and aligned."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")
