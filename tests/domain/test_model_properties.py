"""Requests with equal merge keys can always be one batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.domain.tensors import TensorSpec
from app.runtime import batch
from tests.builders import spec

#: x has a free axis, c is a constant with a free axis.
MODEL = spec(inputs=(TensorSpec("x", "FP32", (-1, -1), 0), TensorSpec("c", "INT8", (-1,), None)))


@st.composite
def requests(draw):
    rows, width = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    constant = draw(st.lists(st.integers(0, 1), max_size=2))
    return {"x": np.ones((rows, width), np.float32), "c": np.array(constant, np.int8)}


@given(requests(), requests())
def test_equal_keys_mean_that_the_requests_can_be_one_batch(left, right):
    keys = [MODEL.merge_key(inputs, token) for token, inputs in enumerate((left, right), 1)]
    same = left["x"].shape[1] == right["x"].shape[1] and left["c"].tolist() == right["c"].tolist()
    assert (keys[0] == keys[1]) is same
    if same:
        rows = MODEL.rows_of(left) + MODEL.rows_of(right)
        assert MODEL.rows_of(batch.assemble([left, right], MODEL.inputs, rows, rows)) == rows
