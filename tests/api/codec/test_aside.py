"""Large JSON in a process of its own gives what small JSON gives here."""

from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest

from app.api.codec.aside import COMMAND, LARGE_ANSWER, Response, answer, encode_large, is_large, parse_large, write
from app.api.codec.head import parse_head
from app.api.codec.parameters import OutputRequest
from app.api.codec.ranges import Shared
from app.api.codec.reply import Encoder
from app.api.codec.request import Decoded, Decoder
from app.domain.errors import InvalidRequest
from app.runtime.aside import Aside, Unavailable
from tests.api.codec.test_tritonclient import SAMPLES, ours
from tests.api.codec.wire import DTYPES, numbers, same
from tests.api.malformed import MALFORMED, MODEL
from tests.builders import spec, tensor

ALL = spec(inputs=tuple(tensor(name, name, (-1, 2)) for name in DTYPES))


def document():
    inputs = [
        {"name": name, "datatype": name, "shape": [2, 2], "data": numbers(ours(SAMPLES[name]), name)} for name in DTYPES
    ]
    return orjson.dumps({"id": "é", "inputs": inputs, "parameters": {"timeout": 5, "more": 1}})


@pytest.fixture(scope="module")
def process():
    aside = Aside("json_process", COMMAND)
    yield aside.ask
    aside.close()


@pytest.mark.parametrize("kind", ["process", "here"])
def test_every_datatype_arrives_as_it_was(request, kind):
    ask = request.getfixturevalue("process") if kind == "process" else answer
    expected = parse_head(document(), 900, ALL)
    plan = parse_large(ask, document(), 900, ALL)
    assert (plan.id, plan.parameters, plan.timeout_us, plan.size) == ("é", {"more": 1}, 5, 900)
    assert plan.arrays.keys() == expected.arrays.keys()
    assert all(same(array, expected.arrays[name]) for name, array in plan.arrays.items())


def test_binary_inputs_stay_where_they_are(process):
    head = orjson.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}},
                {"name": "s", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": 9}},
                {"name": "k", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]},
                {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]},
            ]
        }
    )
    plan = parse_large(process, memoryview(head), len(head), MODEL)
    assert plan.slots == parse_head(head, len(head), MODEL).slots
    assert plan.size == len(head) + 21


@pytest.mark.parametrize("case", [each for each in MALFORMED if each.header_length is None], ids=lambda each: each.name)
def test_what_is_refused_is_refused_in_the_same_words(case):
    decoder = Decoder()
    with pytest.raises(InvalidRequest) as expected:
        decoder.decode(case.body, None, "id", MODEL)
    with pytest.raises(InvalidRequest) as told:
        decoder.decode(case.body, None, "id", MODEL, partial(parse_large, answer))
    assert told.value.message == expected.value.message


def test_an_error_crosses_over_with_its_code(process):
    empty = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [0, 3], "data": []}]})
    with pytest.raises(InvalidRequest, match="0 rows") as told:
        parse_large(process, empty, len(empty), spec())
    assert told.value.code == "empty_batch"


def test_without_a_process_it_is_done_here():
    def nobody(_):
        raise Unavailable("no memory")

    assert parse_large(nobody, document(), 900, ALL).arrays.keys() == DTYPES.keys()


def decoded(outputs=None, *, binary=False, shared=None):
    return Decoded("é", {"large": np.zeros(3)}, {}, outputs, binary, None, shared=shared)


TWO = spec(outputs=(tensor("y", "FP32", (-1, 2)), tensor("z", "INT64", (-1, 2))))
OUTPUTS: dict[str, Any] = {"y": np.array([[1.5, np.nan], [3, 4]], np.float32), "z": np.arange(4).reshape(2, 2)}


@pytest.mark.parametrize("kind", ["process", "here"])
@pytest.mark.parametrize(
    "request_of", [decoded(), decoded(binary=True), decoded((OutputRequest("z", True), OutputRequest("y")))]
)
def test_an_answer_that_is_written_there_is_the_same(request, kind, request_of):
    ask = request.getfixturevalue("process") if kind == "process" else write
    response = Response(request_of, "two", TWO, OUTPUTS, {"batch_rows": 2})
    expected, there = Encoder().encode(*response), encode_large(ask, Encoder(), response)
    assert there[0] == expected[0]
    assert b"".join(there[1]) == b"".join(expected[1])


def test_what_json_cannot_carry_is_refused_there_too(process):
    model = spec(outputs=(tensor("y", "BYTES", (-1,)),))
    response = Response(decoded(), "text", model, {"y": np.array([b"\xff"], np.object_)}, None)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        encode_large(process, Encoder(), response)


def test_an_answer_is_written_here_where_no_process_can_be_started():
    def none(_):
        raise Unavailable("no process")

    response = Response(decoded(), "two", TWO, OUTPUTS, None)
    assert encode_large(none, Encoder(), response) == Encoder().encode(*response)


def test_only_what_takes_long_to_write_as_json_goes_there():
    large = np.zeros(LARGE_ANSWER + 1, np.float32)
    model = spec(outputs=(tensor("y", "FP32", (-1,)),))
    assert is_large(decoded(), model, {"y": large})
    assert is_large(decoded((OutputRequest("y"),)), model, {"y": large})
    assert not is_large(decoded(), model, {"y": large[1:]})
    assert not is_large(decoded(binary=True), model, {"y": large})
    assert not is_large(decoded((OutputRequest("y", True),)), model, {"y": large})
    assert not is_large(decoded((OutputRequest("y", classification=1),)), model, {"y": large})
    assert not is_large(decoded(shared=Shared((), ())), model, {"y": large})
