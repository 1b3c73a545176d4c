"""Encoding: what a response looks like on the wire."""

import numpy as np
import pytest

from app.api.codec.parameters import OutputRequest
from app.api.codec.reply import Encoder
from app.api.codec.request import Decoded
from app.domain.errors import InvalidRequest
from tests.api.codec.wire import objects, read
from tests.builders import spec, tensor

Y = np.arange(6, dtype=np.float32).reshape(2, 3)
BINARY_Y = {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
JSON_Y = {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
JSON_HEADERS = {b"content-type": b"application/json"}


def asking(*wanted, identifier=None, binary=False):
    """A decoded request that wants these outputs (none: all)."""
    return Decoded(identifier, {}, {}, wanted or None, binary, None)


def encode(outputs, *wanted, model=None, encoder=None, model_id="id", parameters=None, **members):
    request = asking(*wanted, **members)
    return (encoder or Encoder()).encode(request, model_id, model or spec(), outputs, parameters)


def reply(outputs, *wanted, **members):
    return read(encode(outputs, *wanted, **members))


def test_outputs_are_json_by_default():
    document, binary, headers = reply({"y": Y})
    assert document == {"model_name": "m", "model_version": "1", "outputs": [JSON_Y]}
    assert binary == b""
    assert headers == JSON_HEADERS


def test_all_outputs_are_binary_when_the_request_says_so():
    document, binary, headers = reply({"y": Y}, binary=True)
    assert document["outputs"] == [BINARY_Y]
    assert binary == Y.tobytes()
    assert headers[b"content-type"] == b"application/octet-stream"


def test_named_outputs_come_in_the_order_of_the_request_each_in_its_form():
    model = spec(outputs=(tensor("y"), tensor("a", "INT64", (-1,)), tensor("s", "BYTES", (-1,))))
    a, s = np.array([5, 6]), objects([b"\xff", b""], (2,))
    wanted = (OutputRequest("s", True), OutputRequest("a", False), OutputRequest("y", True))
    document, binary, _ = reply({"y": Y, "a": a, "s": s}, *wanted, model=model)
    assert document["outputs"] == [
        {"name": "s", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}},
        {"name": "a", "datatype": "INT64", "shape": [2], "data": [5, 6]},
        BINARY_Y,
    ]
    assert binary == b"\1\0\0\0\xff\0\0\0\0" + Y.tobytes()


def test_a_subset_leaves_the_other_outputs_out():
    model = spec(outputs=(tensor("y"), tensor("z")))
    document, binary, _ = reply({"y": Y, "z": Y}, OutputRequest("z", True), model=model)
    assert [output["name"] for output in document["outputs"]] == ["z"]
    assert len(binary) == Y.nbytes


@pytest.mark.parametrize("binary", [False, True])
def test_members_come_in_the_order_of_the_protocol(binary):
    document, _, _ = reply({"y": Y}, identifier="7", binary=binary, parameters={"batch_rows": 2})
    assert list(document) == ["id", "model_name", "model_version", "parameters", "outputs"]
    assert document["parameters"] == {"batch_rows": 2}
    assert list(document["outputs"][0]) == list(BINARY_Y if binary else JSON_Y)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("identifier", ['a"b', "é\n", "\0", None])
def test_id_is_echoed_verbatim_or_left_out(binary, identifier):
    document, _, _ = reply({"y": Y}, identifier=identifier, binary=binary)
    assert document.get("id") == identifier
    assert ("id" in document) == (identifier is not None)


@pytest.mark.parametrize("parameters", [None, {}])
def test_response_without_parameters_has_no_such_member(parameters):
    document, _, _ = reply({"y": Y}, parameters=parameters)
    assert "parameters" not in document


@pytest.mark.parametrize("model_version", ["1", "12"])
def test_version_is_the_models(model_version):
    document, _, _ = reply({"y": Y}, model=spec(version=model_version))
    assert document["model_version"] == model_version


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_binary_output_of_no_bytes_makes_a_plain_json_response(datatype):
    model = spec(outputs=(tensor("y", datatype),))
    empty = np.zeros((0, 3), model.outputs[0].dtype)
    document, binary, headers = reply({"y": empty}, model=model, binary=True, identifier="7")
    assert document["outputs"] == [
        {"name": "y", "datatype": datatype, "shape": [0, 3], "parameters": {"binary_data_size": 0}}
    ]
    assert binary == b""
    assert headers == JSON_HEADERS


def test_one_empty_output_among_others_stays_binary():
    model = spec(outputs=(tensor("e", "FP32", (-1, -1)), tensor("y")))
    document, binary, headers = reply({"e": np.zeros((2, 0), np.float32), "y": Y}, model=model, binary=True)
    assert [output["parameters"]["binary_data_size"] for output in document["outputs"]] == [0, 24]
    assert binary == Y.tobytes()
    assert b"inference-header-content-length" in headers


def test_scalar_output_has_an_empty_shape():
    model = spec(outputs=(tensor("y", "FP32", (), None),))
    for binary in (False, True):
        document, _, _ = reply({"y": np.array(2.5, np.float32)}, model=model, binary=binary)
        assert document["outputs"][0]["shape"] == []


@pytest.mark.parametrize("rows", [2, 20_000])
@pytest.mark.parametrize("order", ["C", "F", "reversed", "unaligned"])
def test_outputs_in_any_memory_order_are_sent_in_row_major_order(rows, order):
    array = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    shown = {
        "C": array,
        "F": np.asfortranarray(array),
        "reversed": array[::-1, ::-1],
        "unaligned": np.ndarray(array.shape, array.dtype, b"\0" + array.tobytes(), 1),
    }[order]
    _, binary, _ = reply({"y": shown}, binary=True)
    assert binary == shown.tobytes(order="C")


def test_bytes_in_any_memory_order_are_sent_in_row_major_order():
    array = np.asfortranarray(objects([b"a", b"b", b"c", b"d"], (2, 2)))
    _, binary, _ = reply({"y": array}, model=spec(outputs=(tensor("y", "BYTES", (-1, 2)),)), binary=True)
    assert binary[4::5] == b"abcd"


def test_large_tensor_is_not_copied():
    array = np.zeros((20_000, 3), np.float32)
    _, body = encode({"y": array}, binary=True)
    assert len(body) == 2
    assert np.shares_memory(np.frombuffer(body[1], np.uint8), array)


def test_empty_tensor_adds_no_buffer():
    model = spec(outputs=(tensor("e"), tensor("y")))
    outputs = {"e": np.zeros((0, 3), np.float32), "y": np.zeros((20_000, 3), np.float32)}
    assert len(encode(outputs, model=model, binary=True)[1]) == 2


def test_small_tensors_make_one_buffer():
    assert len(encode({"y": Y}, binary=True)[1]) == 1
    assert len(encode({"y": Y})[1]) == 1


def test_buffers_are_flat_bytes_whose_lengths_add_up():
    model = spec(outputs=(tensor("b", "BOOL"), tensor("h", "FP16"), tensor("e"), tensor("s", "BYTES")))
    outputs = {
        "b": np.ones((20_000, 3), np.bool_),
        "h": np.ones((20_000, 3), np.float16),
        "e": np.zeros((0, 3), np.float32),
        "s": objects([b"ab"] * 6, (2, 3)),
    }
    document, binary, _ = reply(outputs, model=model, binary=True)
    _, body = encode(outputs, model=model, binary=True)
    assert all(memoryview(buffer).format == "B" and memoryview(buffer).ndim == 1 for buffer in body)
    assert len(binary) == sum(output["parameters"]["binary_data_size"] for output in document["outputs"])
    assert sum(map(len, body)) == sum(memoryview(buffer).nbytes for buffer in body)


def test_known_head_carries_the_tensors_of_each_response():
    encoder = Encoder()
    for number in range(3):
        _, binary, _ = reply({"y": Y + number}, binary=True, encoder=encoder)
        assert binary == (Y + number).tobytes()


def test_known_head_is_not_used_for_another_shape_model_name_id_or_form():
    encoder = Encoder()
    first = reply({"y": Y}, binary=True, encoder=encoder)[0]
    assert reply({"y": Y[:1]}, binary=True, encoder=encoder)[0]["outputs"][0]["shape"] == [1, 3]
    assert reply({"y": Y}, binary=True, encoder=encoder, model=spec("renamed"))[0]["model_name"] == "renamed"
    changed = spec(version="2")
    assert reply({"y": Y}, binary=True, encoder=encoder, model=changed, model_id="2")[0]["model_version"] == "2"
    assert reply({"y": Y}, binary=True, encoder=encoder, identifier="7")[0] == {"id": "7", **first}
    assert reply({"y": Y}, binary=True, encoder=encoder, parameters={"p": 1})[0] == {"parameters": {"p": 1}, **first}
    assert reply({"y": Y}, encoder=encoder)[0]["outputs"] == [JSON_Y]
    assert reply({"y": Y}, OutputRequest("y", False), binary=True, encoder=encoder)[0]["outputs"] == [JSON_Y]
    assert reply({"y": Y}, binary=True, encoder=encoder)[0] == first


def test_parameters_of_one_response_do_not_reach_the_next():
    encoder = Encoder()
    reply({"y": Y}, binary=True, encoder=encoder, parameters={"p": 1})
    assert "parameters" not in reply({"y": Y}, binary=True, encoder=encoder)[0]


@pytest.mark.parametrize("binary", [False, True])
def test_classified_output_becomes_bytes_with_labels(binary):
    model = spec(labels={"y": ("apple", "pear", "plum")})
    document, blob, _ = reply({"y": Y}, OutputRequest("y", binary, 2), model=model)
    (output,) = document["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    texts = ["2.000000:2:plum", "1.000000:1:pear", "5.000000:2:plum", "4.000000:1:pear"]
    if binary:
        assert blob == b"".join(len(text).to_bytes(4, "little") + text.encode() for text in texts)
    else:
        assert output["data"] == texts


def test_classified_output_without_labels_shows_value_and_index():
    document, _, _ = reply({"y": Y}, OutputRequest("y", False, 1), model=spec(labels={"other": ("a",)}))
    assert document["outputs"][0]["data"] == ["2.000000:2", "5.000000:2"]


def test_bytes_that_are_not_utf8_are_refused_as_json_and_sent_as_binary():
    model = spec(outputs=(tensor("y", "BYTES", (-1,)),))
    outputs = {"y": objects([b"\xff"], (1,))}
    with pytest.raises(InvalidRequest, match=r"'y' .*binary_data"):
        encode(outputs, model=model)
    assert reply(outputs, model=model, binary=True)[1] == b"\1\0\0\0\xff"
