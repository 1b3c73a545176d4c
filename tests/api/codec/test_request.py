"""Decoding: what the members of a request mean."""

import json

import numpy as np
import pytest

from app.api.codec.parameters import LONGEST_TIMEOUT_US, OutputRequest
from app.api.codec.request import Decoder
from app.domain.errors import InvalidRequest
from tests.api.codec.wire import item, objects, request, same
from tests.builders import spec, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def decode(*items, model=None, decoder=None, **members):
    body, header_length = request(*items, **members)
    return (decoder or Decoder()).decode(body, header_length, "id", model or spec())


def decode_x(**members):
    return decode(item("x", X), **members)


@pytest.mark.parametrize("form", ["binary", "nested", "flat"])
def test_tensor_arrives_in_every_form(form):
    assert same(decode(item("x", X, form=form)).inputs["x"], X)


def test_request_without_header_length_is_json():
    body, _ = request(item("x", X, form="nested"))
    assert same(Decoder().decode(body, None, "id", spec()).inputs["x"], X)


def test_header_length_of_the_whole_body_is_json():
    body, header_length = request(item("x", X, form="nested"))
    assert header_length == str(len(body))
    assert same(Decoder().decode(body, header_length, "id", spec()).inputs["x"], X)


@pytest.mark.parametrize("form", ["{}", " {} ", "\t{}", "000{}"])
def test_header_length_may_carry_blanks_and_leading_zeros(form):
    body, header_length = request(item("x", X))
    assert same(Decoder().decode(body, form.format(header_length), "id", spec()).inputs["x"], X)


def test_header_length_in_foreign_digits_is_refused():
    body, _ = request(item("x", X))
    with pytest.raises(InvalidRequest, match="Inference-Header-Content-Length"):
        Decoder().decode(body, "\u0661\u0662", "id", spec())


def test_json_and_binary_inputs_mix_and_blobs_follow_the_order_of_the_request():
    model = spec(inputs=(tensor("x"), tensor("a", "INT64", (-1, 1)), tensor("s", "BYTES", (-1,))))
    a, s = np.array([[1], [2]], np.int64), objects([b"\xff", b""], (2,))
    inputs = decode(item("s", s, "BYTES"), item("a", a, "INT64", "flat"), item("x", X), model=model).inputs
    assert same(inputs["x"], X)
    assert same(inputs["a"], a)
    assert same(inputs["s"], s)


@pytest.mark.parametrize("pad", range(8))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_tensors_are_read_wherever_the_json_ends(pad, kind):
    wide = np.arange(4, dtype=np.float64).reshape(2, 2)
    model = spec(inputs=(tensor("x"), tensor("d", "FP64", (-1, 2))))
    body, header_length = request(item("x", X), item("d", wide, "FP64"), pad=pad)
    inputs = Decoder().decode(kind(body), header_length, "id", model).inputs
    assert all(array.flags.c_contiguous for array in inputs.values())
    assert same(inputs["x"], X)
    assert same(inputs["d"], wide)


@pytest.mark.parametrize("pad", range(4))
def test_tensor_is_a_view_of_the_body(pad):
    body, header_length = request(item("x", X), pad=pad)
    array = Decoder().decode(body, header_length, "id", spec()).inputs["x"]
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("shape", [(1, 0, 2), (2, 0, 0), (1, 0, 2**20)])
@pytest.mark.parametrize("form", ["binary", "flat"])
def test_empty_tensor_keeps_its_shape(shape, form):
    model = spec(inputs=(tensor("x", "FP32", (-1, -1, -1)),))
    assert decode(item("x", np.zeros(shape, np.float32), form=form), model=model).inputs["x"].shape == shape


def test_nested_empty_tensor_is_accepted():
    model = spec(inputs=(tensor("x", "FP32", (-1, -1)),))
    assert decode(item("x", np.zeros((2, 0), np.float32), form="nested"), model=model).inputs["x"].shape == (2, 0)


def test_empty_unbatched_tensor_is_accepted_both_ways():
    model = spec(inputs=(tensor("x", "FP32", (-1,), None),))
    for form in ("binary", "flat"):
        assert decode(item("x", np.zeros(0, np.float32), form=form), model=model).inputs["x"].shape == (0,)


@pytest.mark.parametrize("form", ["binary", "nested", "flat"])
def test_scalar_tensor_arrives(form):
    model = spec(inputs=(tensor("x", "FP32", (), None),))
    assert same(
        decode(item("x", np.array(2.5, np.float32), form=form), model=model).inputs["x"], np.array(2.5, np.float32)
    )


def test_unbatched_input_does_not_take_part_in_the_row_count():
    model = spec(inputs=(tensor("x"), tensor("k", "FP32", (-1,), None)))
    assert decode(item("x", X), item("k", np.zeros(5, np.float32)), model=model).inputs["k"].shape == (5,)


def test_rows_are_counted_along_each_inputs_own_batch_axis():
    model = spec(inputs=(tensor("x"), tensor("t", "FP32", (-1, 2), 1)))
    with pytest.raises(InvalidRequest, match="'t' has batch size 5"):
        decode(item("x", X), item("t", np.zeros((2, 5), np.float32)), model=model)


def test_batch_extent_is_free_even_where_the_graph_fixes_it():
    model = spec(inputs=(tensor("x", "FP32", (1, 3)),))
    assert same(decode(item("x", X), model=model).inputs["x"], X)


@pytest.mark.parametrize("form", ["binary", "nested", "flat"])
def test_bytes_may_come_as_uint8_with_one_more_axis(form):
    model = spec(inputs=(tensor("s", "BYTES", (-1, 2)),))
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    array = decode(item("s", pixels, "UINT8", form), model=model).inputs["s"]
    assert same(array, objects([row.tobytes() for row in pixels.reshape(4, 3)], (2, 2)))
    assert {type(element) for element in array.flat} == {bytes}


@pytest.mark.parametrize("form", ["binary", "nested", "flat"])
def test_no_bytes_elements_may_come_as_uint8(form):
    model = spec(inputs=(tensor("s", "BYTES", (-1,), None),))
    for shape in ((0, 5), (0, 0)):
        array = decode(item("s", np.zeros(shape, np.uint8), "UINT8", form), model=model).inputs["s"]
        assert same(array, objects([], (0,)))


def test_empty_shape_beyond_what_can_be_addressed_is_refused():
    model = spec(inputs=(tensor("x", "FP32", (-1, -1, -1)),))
    member = {"name": "x", "datatype": "FP32", "shape": [1, 0, 2**62], "data": []}
    with pytest.raises(InvalidRequest, match="'x'"):
        decode((member, b""), model=model)


@pytest.mark.parametrize("datatype", ["UINT8", "BYTES"])
def test_uint8_input_is_not_taken_for_bytes(datatype):
    model = spec(inputs=(tensor("u", "UINT8", (-1, 2)),))
    pixels = np.zeros((1, 2, 3), np.uint8) if datatype == "UINT8" else objects([b"ab", b"cd"], (1, 2))
    with pytest.raises(InvalidRequest, match="'u'"):
        decode(item("u", pixels, datatype), model=model)


def test_ignored_members_are_ignored():
    assert decode_x(model_name="other", note={"a": [[1]]}).id is None


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


def test_ignored_members_may_nest_to_the_limit_but_not_beyond():
    def decode_nested(depth):
        member, data = item("x", X)
        decode(({**member, "note": nested(depth - 3)}, data))
        decode_x(outputs=[{"name": "y", "note": {"a": nested(depth - 4)}}])
        decode_x(note=nested(depth - 1))

    decode_nested(100)
    for place in (
        {"note": nested(100)},
        {"outputs": [{"name": "y", "note": {"a": nested(97)}}]},
        {"inputs": [{"name": "x", "note": nested(98)}]},
    ):
        with pytest.raises(InvalidRequest, match="deeper than 100"):
            decode_x(**place)


@pytest.mark.parametrize(("given", "expected"), [("7", "7"), ("é\n", "é\n"), ("", None)])
def test_id_is_kept_and_an_empty_one_is_none(given, expected):
    assert decode_x(id=given).id == expected


def test_parameters_of_the_clients_own_are_passed_on_unchanged():
    own = {"explain": True, "text": "é", "count": 2**63, "ratio": 0.5}
    assert decode_x(parameters=own).parameters == own


def test_parameters_of_the_protocol_are_consumed():
    decoded = decode_x(
        parameters={
            "timeout": 5,
            "priority": 1,
            "sequence_id": 0,
            "sequence_start": False,
            "sequence_end": False,
            "binary_data_output": True,
        }
    )
    assert decoded.parameters == {}
    assert decoded.timeout_us == 5
    assert decoded.binary_default


def test_sequence_id_of_the_empty_string_is_no_sequence():
    assert decode_x(parameters={"sequence_id": ""}).parameters == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0, None), (1, 1), (2**63 - 1, LONGEST_TIMEOUT_US), (2**64 - 1, LONGEST_TIMEOUT_US), (10**30, LONGEST_TIMEOUT_US)],
)
def test_timeout_counts_microseconds_and_absurd_ones_are_cut(given, expected):
    assert decode_x(parameters={"timeout": given}).timeout_us == expected


@pytest.mark.parametrize("members", [{}, {"outputs": []}])
def test_no_named_outputs_means_all_of_them(members):
    decoded = decode_x(**members)
    assert decoded.outputs is None
    assert not decoded.binary_default


def test_output_overrides_the_default_of_the_request():
    outputs = [{"name": "y"}, {"name": "z", "parameters": {"binary_data": False}}]
    model = spec(outputs=(tensor("y"), tensor("z")))
    decoded = decode(item("x", X), model=model, outputs=outputs, parameters={"binary_data_output": True})
    assert decoded.outputs == (OutputRequest("y", True), OutputRequest("z", False))


def test_output_is_json_unless_asked_otherwise():
    assert decode_x(outputs=[{"name": "y"}]).outputs == (OutputRequest("y", False),)
    assert decode_x(outputs=[{"name": "y", "parameters": {"binary_data": True}}]).outputs == (OutputRequest("y", True),)


@pytest.mark.parametrize("count", [0, 5])
def test_classification_is_kept_with_its_output(count):
    (output,) = decode_x(outputs=[{"name": "y", "parameters": {"classification": count}}]).outputs
    assert output.classification == count


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "BOOL", "BYTES"])
def test_classification_of_a_type_without_ranking_is_refused(datatype):
    model = spec(outputs=(tensor("y", datatype),))
    with pytest.raises(InvalidRequest, match=f"'y': {datatype}"):
        decode(item("x", X), model=model, outputs=[{"name": "y", "parameters": {"classification": 1}}])


def test_known_head_reads_the_bytes_of_each_request():
    decoder = Decoder()
    for number in range(3):
        inputs = decode(item("x", X + number), decoder=decoder, id="same").inputs
        assert same(inputs["x"], X + number)


def test_known_head_of_one_model_is_not_known_for_another():
    decoder = Decoder()
    body, header_length = request(item("x", X))
    decoder.decode(body, header_length, "one", spec())
    with pytest.raises(InvalidRequest, match=r"\[-1,6\]"):
        decoder.decode(body, header_length, "two", spec(inputs=(tensor("x", "FP32", (-1, 6)),)))


def test_json_data_is_not_remembered_with_the_head():
    decoder = Decoder()
    body, header_length = request(item("x", X, form="nested"))
    first = decoder.decode(body, header_length, "id", spec())
    first.inputs["x"][:] = 9
    assert same(decoder.decode(body, header_length, "id", spec()).inputs["x"], X)


def test_changing_the_parameters_of_one_request_does_not_change_the_next():
    decoder = Decoder()
    first = decode(item("x", X), decoder=decoder, parameters={"a": 1})
    first.parameters["a"] = 2
    first.inputs.clear()
    second = decode(item("x", X), decoder=decoder, parameters={"a": 1})
    assert second.parameters == {"a": 1}
    assert same(second.inputs["x"], X)


def test_heads_beyond_the_cached_size_are_decoded_alike():
    decoder = Decoder()
    for note in ("a", "b"):
        assert same(decode(item("x", X), decoder=decoder, note=note * 5000).inputs["x"], X)
