"""The rows that batches are made of to try a model."""

from itertools import pairwise

import numpy as np
import pytest

from app.backends.probes import pools
from app.domain.model import Variant
from app.domain.tensors import TensorSpec
from tests.backends import models

DATATYPES = ["FP32", "FP16", "BF16", "INT64", "UINT8", "BOOL", "BYTES"]


def first_pool(tensors, sample=None, variant=None):
    described = models.spec(tensors, tensors)
    return next(pools(described, variant or described.variants[0], sample))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_random_rows_differ_from_the_one_before_and_the_last_is_zeros(datatype):
    tensor = TensorSpec("x", datatype, (-1, 1), 0)
    pool = first_pool([tensor])["x"]
    assert pool.dtype == tensor.dtype
    rows = pool.tolist()
    assert all(left != right for left, right in pairwise(rows[:-1]))
    assert rows[-1] == ([b""] if datatype == "BYTES" else [0])


def test_integers_and_truths_are_zeros_and_ones():
    pool = first_pool([TensorSpec("x", "INT64", (-1, 4), 0), TensorSpec("s", "BYTES", (-1, 4), 0)])
    assert set(pool["x"].ravel().tolist()) == {0, 1}
    assert set(pool["s"][:-1:2].ravel().tolist()) == {b"0", b"1"}


def test_free_axes_have_eight_then_sixty_four_and_constants_one_value():
    described = models.spec([TensorSpec("x", "FP32", (-1, -1), 1), TensorSpec("c", "FP32", (2,))], [])
    shapes = [(pool["x"].shape, pool["c"].shape) for pool in pools(described, described.variants[0], None)]
    assert shapes == [((8, 8), (2,)), ((64, 8), (2,))]


def test_of_a_sample_come_the_rows_that_differ_from_the_first():
    x = np.array([[1, 2], [1, 2], [3, 4], [5, 6]], np.float32)
    assert first_pool([TensorSpec("x", "FP32", (-1, 2), 0)], {"x": x})["x"].tolist() == [[1, 2], [3, 4], [5, 6], [0, 0]]


def test_rows_of_a_sample_differ_where_one_input_does():
    sample = {"a": np.array([[1.0], [1.0]], np.float32), "b": np.array([[2], [3]])}
    pool = first_pool([TensorSpec("a", "FP32", (-1, 1), 0), TensorSpec("b", "INT64", (-1, 1), 0)], sample)
    assert pool["a"].ravel().tolist() == [1, 1, 0]
    assert pool["b"].ravel().tolist() == [2, 3, 0]


@pytest.mark.parametrize("count", [1, 3])
def test_beside_the_one_row_of_a_sample_stand_random_ones(count):
    pool = first_pool([TensorSpec("x", "FP32", (2, -1), 1)], {"x": np.full((2, count), 7, np.float32)})["x"]
    assert pool[:, 0].tolist() == [7, 7]
    assert len(np.unique(pool[0, :-1])) == pool.shape[1] - 1 > 2
    assert pool.flags.c_contiguous


def test_a_sample_of_another_variant_is_left_out():
    tensor = TensorSpec("x", "FP32", (-1, -1), 0)
    sample = {"x": np.ones((2, 3), np.float32)}
    assert first_pool([tensor], sample, Variant("t=3", (1, 2), {("x", 1): 3}))["x"].shape[1] == 3
    assert first_pool([tensor], sample, Variant("t=4", (1, 2), {("x", 1): 4}))["x"].shape[1] == 4


def test_text_is_tried_as_words_between_digits_and_then_as_digits():
    """A model that makes numbers of its text takes no words."""
    described = models.spec([TensorSpec("x", "BYTES", (-1,), 0)], [])
    made = list(pools(described, described.variants[0], None))
    assert [max(map(len, pool["x"])) > 1 for pool in made] == [True, False, True, False]
    words = made[0]["x"][:-1]
    assert all(len(text) == 1 for text in words[::2])
    assert all(text.translate(None, b"01") == b" ,;|\t\n-/._:" for text in words[1::2])
