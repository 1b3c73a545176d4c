"""How far two answers are apart. NaN equals NaN, an infinity itself, and nothing else."""

from math import inf

import numpy as np

from app.domain.tensors import Array, TensorSpec


def numbers(tensor: TensorSpec, array: Array) -> Array:
    """The array with numbers that numpy can reckon with: BF16 comes as raw bits."""
    if tensor.datatype != "BF16":
        return array
    wide: Array = (array.astype(np.uint32) << 16).view(np.float32)
    return wide


def difference(left: Array, right: Array) -> float:
    """The largest absolute difference of two floating-point arrays of one shape; infinite where one is no number."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return inf
    return float(np.abs(left[finite] - right[finite]).max(initial=0.0))


def magnitude(array: Array) -> float:
    """The largest finite absolute value of a floating-point array: its range, counted from zero."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
