"""Large JSON in a process of its own gives what small JSON gives here."""

from functools import partial

import orjson
import pytest

from app.api.codec.aside import COMMAND, answer, parse_large
from app.api.codec.head import parse_head
from app.api.codec.request import Decoder
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
