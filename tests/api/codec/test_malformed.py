"""Everything in the table of malformed requests is refused, and the refusal names the culprit."""

import json

import numpy as np
import pytest

from app.api.codec.request import Decoder
from app.domain.errors import InvalidRequest
from tests.api.malformed import MALFORMED, MODEL, VALID, VALID_BINARY


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_malformed_request_is_refused_by_a_message_that_names_the_culprit(case):
    decoder = Decoder()
    for body in (case.body, bytearray(case.body), memoryview(case.body)):
        with pytest.raises(InvalidRequest) as refusal:
            decoder.decode(body, case.header_length, "id", MODEL)
        assert case.names in refusal.value.message
        assert len(refusal.value.message) < 500
        assert "\n" not in refusal.value.message
        json.dumps(refusal.value.message).encode()


def test_requests_that_the_table_spoils_are_valid():
    plain = Decoder().decode(VALID, None, "id", MODEL)
    binary = Decoder().decode(*VALID_BINARY, "id", MODEL)
    assert plain.inputs["x"].tolist() == [[0.0, 0.5, 1.0]]
    assert plain.inputs["s"].tolist() == [[b"", "é".encode()]]
    assert binary.inputs["s"].tolist() == [[b"", b"a"]]
    assert binary.inputs["k"].tolist() == plain.inputs["k"].tolist() == [[-128, 127]]
    assert np.array_equal(binary.inputs["b"], plain.inputs["b"])


def test_names_in_the_table_are_unique():
    assert len({case.name for case in MALFORMED}) == len(MALFORMED) >= 50


def test_refused_request_is_refused_again_when_its_head_is_known():
    decoder = Decoder()
    body, header_length = VALID_BINARY
    decoder.decode(body, header_length, "id", MODEL)
    for spoiled in (body[:-1], body + b"\0", body[:-2]):
        with pytest.raises(InvalidRequest):
            decoder.decode(spoiled, header_length, "id", MODEL)


def test_batch_without_rows_has_a_reason_of_its_own():
    (case,) = (case for case in MALFORMED if case.name == "no rows")
    with pytest.raises(InvalidRequest) as refusal:
        Decoder().decode(case.body, None, "id", MODEL)
    assert refusal.value.code == "empty_batch"
