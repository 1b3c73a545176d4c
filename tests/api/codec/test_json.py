"""Tensor data as JSON: which values each datatype takes, and how it is written."""

import math

import ml_dtypes
import numpy as np
import orjson
import pytest

from app.api.codec.json import read_data, write_data
from app.domain.errors import InvalidRequest
from app.domain.tensors import Array
from tests.api.codec.wire import DTYPES, FLOATS, objects, same

INTEGERS = [name for name in DTYPES if "INT" in name]


def read(text, datatype, shape=None):
    data = orjson.loads(text)
    return read_data(data, "x", datatype, (len(data),) if shape is None else shape)


def write(array, datatype):
    return orjson.dumps(write_data(array, "y", datatype), option=orjson.OPT_SERIALIZE_NUMPY).decode()


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_their_limits(datatype):
    limits = np.iinfo(DTYPES[datatype])
    array = read(f"[{limits.min},{limits.max},0]", datatype)
    assert same(array, np.array([limits.min, limits.max, 0], DTYPES[datatype]))
    assert write(array, datatype) == f"[{limits.min},{limits.max},0]"


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_beyond_their_limits_are_refused_with_the_limits(datatype):
    limits = np.iinfo(DTYPES[datatype])
    for value in (limits.min - 1, limits.max + 1):
        with pytest.raises(InvalidRequest, match=f"'x': element 1 .*{datatype}"):
            read(f"[0,{value}]", datatype)


@pytest.mark.parametrize("datatype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("value", ["true", "false", "null", '"1"', '"nan"', '""', "[1]", "{}"])
def test_numbers_are_not_made_from_other_values(datatype, value):
    with pytest.raises(InvalidRequest, match="'x': element 1"):
        read(f"[0,{value},0]", datatype)


@pytest.mark.parametrize("datatype", [*INTEGERS, "BOOL", "BYTES"])
@pytest.mark.parametrize("value", ["1.0", "1e2", '"NaN"', "-0.0"])
def test_only_floats_take_fractions_and_nan(datatype, value):
    if datatype == "BYTES" and value == '"NaN"':
        return
    with pytest.raises(InvalidRequest, match="'x': element 0"):
        read(f"[{value}]", datatype)


@pytest.mark.parametrize("datatype", FLOATS)
def test_whole_numbers_are_floats_too(datatype):
    assert write(read("[1,2.5,-3]", datatype), datatype) == "[1.0,2.5,-3.0]"


@pytest.mark.parametrize("datatype", FLOATS)
def test_nan_and_infinities_are_strings_both_ways(datatype):
    text = '["NaN","Infinity","-Infinity",1.0,-0.0]'
    array = read(text, datatype)
    wide = (array.view(ml_dtypes.bfloat16) if datatype == "BF16" else array).astype(np.float64)
    assert math.isnan(wide[0])
    assert wide[1:3].tolist() == [math.inf, -math.inf]
    assert write(array, datatype) == text


@pytest.mark.parametrize(
    ("datatype", "largest", "beyond"),
    [
        ("FP16", 65504, 65520),
        ("BF16", 3.3895313892515355e38, 3.4e38),
        ("FP32", 3.4028234663852886e38, 3.4028236e38),
    ],
)
def test_float_that_would_become_infinite_is_refused(datatype, largest, beyond):
    assert float(orjson.loads(write(read(f"[{largest}]", datatype), datatype))[0]) == pytest.approx(largest)
    with pytest.raises(InvalidRequest, match=f"'x': element 1 .*{datatype}"):
        read(f"[0,{beyond}]", datatype)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (1 + 2**-8, 0x3F80),  # a tie goes to the even neighbour
        (1 + 3 * 2**-8, 0x3F82),
        (1 + 2**-8 + 2**-40, 0x3F81),  # just above a tie: FP32 cannot tell
        (1 + 3 * 2**-8 - 2**-40, 0x3F81),
        (-(1 + 2**-8 + 2**-40), 0xBF81),
        (2.0**-133, 0x0001),  # the smallest
        (2.0**-134, 0x0000),
        (2.0**-134 + 2.0**-180, 0x0001),
        (-1e-300, 0x8000),
    ],
)
def test_bf16_is_rounded_once_to_nearest_even(value, bits):
    assert read_data([value], "x", "BF16", (1,)).tolist() == [bits]


def test_fp16_and_bf16_are_written_exactly():
    assert write(np.array([0.1], np.float16), "FP16") == "[0.0999755859375]"
    assert write(np.array([0x3DCD], np.uint16), "BF16") == "[0.10009765625]"


@pytest.mark.parametrize(
    ("datatype", "pattern", "carrier"),
    [
        ("FP16", 0x7C01, "<u2"),
        ("BF16", 0x7F81, "<u2"),
        ("FP32", 0x7F800001, "<u4"),
        ("FP64", 0x7FF0000000000001, "<u8"),
    ],
)
def test_signalling_nan_is_written_like_any_other(datatype, pattern, carrier):
    # One element and many: numpy converts long arrays by another path.
    for count in (1, 100):
        array: Array = np.array([pattern] * count, carrier).view(DTYPES[datatype])
        assert orjson.loads(write(array, datatype)) == ["NaN"] * count


def test_fp32_is_written_as_the_shortest_number_that_reads_back():
    assert write(np.array([0.1], np.float32), "FP32") == "[0.1]"


def test_bool_is_true_and_false():
    assert same(read("[true,false]", "BOOL"), np.array([True, False]))
    assert write(np.array([True, False]), "BOOL") == "[true,false]"


def test_strings_are_utf8_bytes():
    array = read('["","\u00e9","a\\u0000","NaN"]', "BYTES")
    assert same(array, objects([b"", b"\xc3\xa9", b"a\0", b"NaN"], (4,)))
    assert {type(element) for element in array} == {bytes}
    assert write(array, "BYTES") == '["","\u00e9","a\\u0000","NaN"]'


def test_bytes_that_are_not_utf8_cannot_be_written_as_json():
    with pytest.raises(InvalidRequest, match=r"'y' .*binary_data"):
        write_data(objects([b"ok", b"\xff"], (2,)), "y", "BYTES")


@pytest.mark.parametrize("datatype", DTYPES)
def test_empty_data_gives_an_empty_tensor(datatype):
    assert same(read("[]", datatype, (0, 2)), np.zeros((0, 2), DTYPES[datatype]))
    assert write(np.zeros((0, 2), DTYPES[datatype]), datatype) == "[]"


@pytest.mark.parametrize(
    "data", ["[[1,2],[3]]", "[[1,2],3]", "[[1,2,3],[4]]", "[[1,2],[3,4],[5,6]]", "[[[1],[2]],[[3],[4]]]", "[[1,2],{}]"]
)
def test_nesting_that_disagrees_with_the_shape_is_refused(data):
    with pytest.raises(InvalidRequest, match="'x'"):
        read(data, "INT8", (2, 2))


def test_nesting_by_columns_is_refused():
    with pytest.raises(InvalidRequest, match="axis 0"):
        read("[[1,2],[3,4],[5,6]]", "INT8", (2, 3))


def test_output_in_any_memory_order_is_written_in_row_major_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert write(np.asfortranarray(array), "INT32") == "[0,1,2,3,4,5]"
    assert write(array[:, ::-1], "INT32") == "[2,1,0,5,4,3]"
    assert write(array.T.astype(np.float32), "FP32") == "[0.0,3.0,1.0,4.0,2.0,5.0]"


def test_scalar_is_written_as_an_array_of_one():
    assert write(np.array(2, np.int8), "INT8") == "[2]"
