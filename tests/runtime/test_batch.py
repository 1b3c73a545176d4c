"""Rows go into batches and come out to the same callers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import ExecutionFailed
from app.domain.tensors import TensorSpec
from app.runtime import batch
from tests.builders import rows_of, tensor

X = tensor("x")
AXIS_1 = TensorSpec("state", "FP32", (2, -1, 4), 1)
SCALAR = TensorSpec("rate", "INT64", (), None)
TEXT = TensorSpec("text", "BYTES", (-1,), 0)


def part(first, rows):
    return {
        "x": rows_of(first, rows),
        "state": np.arange(first, first + rows, dtype=np.float32)[None, :, None] * np.ones((2, 1, 4), np.float32),
        "rate": np.array(16000),
        "text": np.array([b"%d" % row for row in range(first, first + rows)], dtype=object),
    }


SPECS = (X, AXIS_1, SCALAR, TEXT)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 3))
def test_every_caller_gets_its_own_rows_back(rows, padding):
    starts = np.cumsum([0, *rows])
    parts = [part(int(start), count) for start, count in zip(starts, rows, strict=False)]
    size = sum(rows) + padding
    inputs = batch.assemble(parts, SPECS, sum(rows), size)
    assert inputs["x"].shape == (size, 3)
    assert inputs["state"].shape == (2, size, 4)
    outputs = {name: array for name, array in inputs.items() if name != "rate"}
    shares = batch.scatter(outputs, (X, AXIS_1, TEXT), rows, size, batched=True)
    for share, original in zip(shares, parts, strict=True):
        for name in ("x", "state", "text"):
            np.testing.assert_array_equal(share[name], original[name])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_cutting_and_joining_changes_nothing(rows):
    whole = part(0, sum(rows))
    pieces = list(batch.cut(whole, SPECS, rows))
    assert [piece["x"].shape[0] for piece in pieces] == rows
    assert all(piece["rate"] is whole["rate"] for piece in pieces)
    joined = batch.join(pieces, (X, AXIS_1, TEXT))
    for name in ("x", "state", "text"):
        np.testing.assert_array_equal(joined[name], whole[name])


def test_padding_rows_are_zeros_and_empty_strings():
    inputs = batch.assemble([part(5, 1), part(6, 1)], SPECS, 2, 4)
    np.testing.assert_array_equal(inputs["x"][2:], np.zeros((2, 3)))
    np.testing.assert_array_equal(inputs["state"][:, 2:], np.zeros((2, 2, 4)))
    assert inputs["text"][2:].tolist() == [b"", b""]


def test_padding_may_repeat_the_last_row():
    inputs = batch.assemble([part(5, 1), part(6, 1)], SPECS, 2, 4, "repeat")
    assert inputs["x"][:, 0].tolist() == [5, 6, 6, 6]
    assert inputs["state"][0, :, 0].tolist() == [5, 6, 6, 6]
    assert inputs["text"].tolist() == [b"5", b"6", b"6", b"6"]


def test_a_lone_request_that_fills_the_size_is_not_copied():
    alone = part(0, 2)
    assert batch.assemble([alone], SPECS, 2, 2)["x"] is alone["x"]


def test_unaligned_and_strided_inputs_are_made_runnable():
    unaligned = np.frombuffer(b"\0" + rows_of(1, 2).tobytes(), dtype=np.float32, offset=1).reshape(2, 3)
    strided = np.asfortranarray(rows_of(1, 2))
    for array in (unaligned, strided):
        ready = batch.assemble([{"x": array}], (X,), 2, 2)["x"]
        assert ready.flags.c_contiguous
        assert ready.flags.aligned
        np.testing.assert_array_equal(ready, rows_of(1, 2))


def test_an_output_whose_extent_is_not_the_batch_is_never_sliced():
    with pytest.raises(ExecutionFailed, match=r"'x' has extent 3 .* size 4"):
        batch.scatter({"x": rows_of(0, 3)}, (X,), [2, 2], 4, batched=True)


def test_outputs_without_batch_go_to_their_one_caller_whole():
    outputs = {"mean": np.array(3, np.float32)}
    assert batch.scatter(outputs, (TensorSpec("mean", "FP32", (), None),), [5], 5, batched=False) == [outputs]
