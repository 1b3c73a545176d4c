"""Raw requests: a body that is nothing but the one tensor."""

import numpy as np
import pytest

from app.api.codec.request import Decoder
from app.domain.errors import InvalidRequest
from tests.api.codec.wire import objects, same
from tests.builders import spec, tensor

X = np.arange(3, dtype=np.float32).reshape(1, 3)


def raw(body, *inputs):
    return Decoder().decode(body, "0", "id", spec(inputs=inputs))


def test_raw_request_is_a_batch_of_one_answered_in_binary():
    decoded = raw(X.tobytes(), tensor("x"))
    assert same(decoded.inputs["x"], X)
    assert decoded.outputs is None
    assert decoded.binary_default
    assert decoded.id is None


@pytest.mark.parametrize(
    ("declared", "nbytes", "shape"),
    [
        (tensor("x", "FP32", (-1, -1)), 20, (1, 5)),
        (tensor("x", "FP32", (-1, 2, -1)), 24, (1, 2, 3)),
        (tensor("x", "FP32", (-1, -1)), 0, (1, 0)),
        (tensor("x", "FP32", (3, -1), 1), 12, (3, 1)),
        (tensor("x", "FP32", (-1,), None), 12, (3,)),
        (tensor("x", "FP32", (), None), 4, ()),
        (tensor("x", "BOOL", (-1, 2)), 2, (1, 2)),
        (tensor("x", "BF16", (4, 3)), 6, (1, 3)),
    ],
)
def test_raw_request_infers_the_one_variable_extent(declared, nbytes, shape):
    assert raw(bytes(nbytes), declared).inputs["x"].shape == shape


@pytest.mark.parametrize(
    ("declared", "nbytes"),
    [
        (tensor("x"), 0),
        (tensor("x"), 11),
        (tensor("x"), 24),
        (tensor("x", "FP32", (-1, -1)), 6),
        (tensor("x", "FP32", (-1, 2, -1)), 4),
        (tensor("x", "FP32", (-1, -1, -1)), 4),
        (tensor("x", "FP32", (-1, 0, -1)), 4),
        (tensor("x", "BYTES", (-1, 2)), 4),
    ],
)
def test_raw_request_that_fits_no_row_is_refused_naming_the_input(declared, nbytes):
    with pytest.raises(InvalidRequest, match="'x'"):
        raw(bytes(nbytes), declared)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("body", [b"", b"\xff\xd8 any bytes"])
def test_raw_body_for_bytes_is_one_element(shape, body):
    array = raw(body, tensor("s", "BYTES", shape)).inputs["s"]
    assert same(array, objects([body], (1,) * len(shape)))


def test_a_bool_byte_other_than_0_is_true_and_becomes_1():
    array = raw(bytes([1, 0, 2, 103, 128, 255]), tensor("x", "BOOL", (-1, 6))).inputs["x"]
    assert (array.dtype, array.tobytes()) == (np.bool_, b"\1\0\1\1\1\1")


def test_raw_request_to_two_inputs_is_refused():
    with pytest.raises(InvalidRequest, match="exactly one input"):
        raw(bytes(12), tensor("x"), tensor("z"))
