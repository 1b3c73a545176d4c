"""How far two answers are apart."""

from math import inf, nan

import numpy as np
import pytest

from app.backends.compare import difference, magnitude, numbers
from app.domain.tensors import TensorSpec


@pytest.mark.parametrize(
    ("left", "right", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([nan, 1.0], [nan, 1.25], 0.25),
        ([inf, -inf], [inf, -inf], 0.0),
        ([inf], [-inf], inf),
        ([nan], [1.0], inf),
        ([1.0], [nan], inf),
        ([inf], [1.0], inf),
        ([], [], 0.0),
    ],
)
def test_nan_equals_nan_and_an_infinity_itself(left, right, apart):
    assert difference(np.array(left, np.float32), np.array(right, np.float32)) == apart


def test_halves_are_subtracted_without_overflow():
    assert difference(np.array([60000], np.float16), np.array([-60000], np.float16)) == 120_000


def test_a_range_is_counted_from_zero_over_what_is_finite():
    assert magnitude(np.array([1.0, -3.0, inf, nan])) == 3.0
    assert magnitude(np.array([nan])) == 0.0


def test_raw_bits_are_read_as_the_numbers_they_are():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    assert numbers(TensorSpec("x", "BF16", (-1,), 0), bits).tolist() == [1.0, -2.0]
    assert numbers(TensorSpec("x", "UINT16", (-1,), 0), bits) is bits
