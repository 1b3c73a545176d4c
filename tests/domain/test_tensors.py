"""What is declared about a tensor, and which arrays fit it."""

import numpy as np
import pytest

from app.domain.tensors import NUMPY_DTYPES, TensorSpec


@pytest.mark.parametrize(
    ("declared", "batch_axis", "actual", "fits"),
    [
        ((-1, 3), 0, (5, 3), True),
        ((-1, 3), 0, (0, 3), True),
        ((-1, 3), 0, (5, 4), False),
        ((-1, 3), 0, (3,), False),
        ((-1, 3), 0, (5, 3, 1), False),
        ((-1, -1), 0, (5, 0), True),
        ((2, -1, 4), 1, (2, 9, 4), True),
        ((2, -1, 4), 1, (9, 2, 4), False),
        ((1, 3), 0, (7, 3), True),
        ((1, 3), None, (7, 3), False),
        ((), None, (), True),
        ((), None, (1,), False),
    ],
)
def test_a_shape_fits_by_rank_and_fixed_extents_and_any_batch(declared, batch_axis, actual, fits):
    assert TensorSpec("x", "FP32", declared, batch_axis).accepts(actual) is fits


def test_an_unknown_datatype_is_refused():
    with pytest.raises(ValueError, match="'x': unknown datatype 'FP8'"):
        TensorSpec("x", "FP8", (1,))


@pytest.mark.parametrize("axis", [-1, 2])
def test_a_batch_axis_outside_the_shape_is_refused(axis):
    with pytest.raises(ValueError, match="batch axis"):
        TensorSpec("x", "FP32", (-1, 3), axis)


def test_every_datatype_has_a_little_endian_numpy_type():
    widths = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}
    widths |= {f"{kind}{bits}": bits // 8 for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)}
    assert {name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items() if name != "BYTES"} == widths
    assert NUMPY_DTYPES["BYTES"] == np.dtype(object)
    assert all(dtype == dtype.newbyteorder("<") for dtype in NUMPY_DTYPES.values())
