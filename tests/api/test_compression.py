"""Compressed requests and answers: what is taken, what is refused, what is given."""

import gzip
import zlib
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api import admission
from app.api.compression import MIN_COMPRESSED, Inflater, choose, compress
from app.api.exchange import Buffer
from app.domain.errors import InvalidRequest, PayloadTooLarge
from tests.builders import rows_of

CODERS: dict[str, Any] = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}
OPENERS: dict[str, Any] = {"gzip": gzip.decompress, "deflate": zlib.decompress}

BODY = orjson.dumps({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 1, 1, 2, 2, 2]}]})


def decompress(packed, coding, most, step=1 << 20):
    """A whole body, unpacked as a request's is, and never further than asked for."""
    inflater = Inflater(packed, coding, most)
    done = False
    while not done:
        room = max(min(step, most - len(inflater.plain)), 1)
        before = len(inflater.plain)
        done = inflater.more(room)
        assert len(inflater.plain) <= before + room
    return inflater.plain


@given(data=st.binary(max_size=5000), coding=st.sampled_from(sorted(CODERS)), step=st.integers(1, 6000))
def test_what_was_compressed_comes_back_in_steps_of_any_size(data, coding, step):
    assert decompress(CODERS[coding](data), coding, len(data), step) == data


@given(data=st.binary(min_size=1, max_size=500), coding=st.sampled_from(sorted(CODERS)), cut=st.integers(1, 500))
def test_a_stream_that_is_cut_anywhere_is_refused(data, coding, cut):
    packed = CODERS[coding](data)
    with pytest.raises(InvalidRequest):
        decompress(packed[: max(len(packed) - cut, 0)], coding, 1000)


@pytest.mark.parametrize("coding", CODERS)
def test_what_follows_the_stream_is_refused(coding):
    packed = CODERS[coding](b"data")
    for more in (b"x", packed):
        with pytest.raises(InvalidRequest, match=f"{len(more)} bytes follow"):
            decompress(packed + more, coding, 1000)


@pytest.mark.parametrize("coding", CODERS)
def test_a_flipped_bit_is_noticed(coding):
    packed = bytearray(CODERS[coding](bytes(range(256)) * 4))
    packed[-1] ^= 1  # of the checksum, or of the length
    with pytest.raises(InvalidRequest):
        decompress(packed, coding, 5000)


@pytest.mark.parametrize("coding", CODERS)
def test_a_bomb_is_unpacked_to_the_limit_and_no_further(coding):
    packed = CODERS[coding](bytes(50_000_000))
    assert len(packed) < 60_000
    with pytest.raises(PayloadTooLarge, match="1000 bytes"):
        decompress(packed, coding, 1000)
    assert len(decompress(CODERS[coding](bytes(1000)), coding, 1000)) == 1000


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (b"", None),
        (b"identity", None),
        (b"br", None),
        (b"gzip", "gzip"),
        (b"GZip", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip, deflate, br", "gzip"),
        (b"deflate, gzip;q=0.5", "deflate"),
        (b"gzip;q=0, deflate", "deflate"),
        (b"gzip;q=0", None),
        (b"*", "gzip"),
        (b"*;q=0.1, gzip;q=0", "deflate"),
        (b"identity, gzip;q=0.5", None),
        (b"gzip;q=high", None),
        (b"gzip;q=2", None),
        (b"\xff;;=,", None),
    ],
)
def test_the_client_chooses_the_coding(accept, coding):
    assert choose(accept) == coding


@pytest.mark.parametrize("coding", OPENERS)
def test_an_answer_of_several_buffers_is_one_stream(coding):
    buffers: list[Buffer] = [b"a" * 3000, memoryview(bytes(30_000)), b"b"]
    packed = compress(buffers, coding)
    assert packed is not None
    assert OPENERS[coding](b"".join(packed)) == b"".join(buffers)


def test_answers_that_would_not_shrink_are_left_alone():
    assert compress([b"x" * (MIN_COMPRESSED - 1)], "gzip") is None
    assert compress([b"head", memoryview(zlib.compress(bytes(range(256)) * 10) * 100)], "gzip") is not None
    noise = Random(1).randbytes(40_000)
    assert compress([b"head", noise], "gzip") is None


pytestmark = pytest.mark.anyio


@pytest.fixture
def small(make_api, stage):
    stage.load()
    return make_api(max_body_bytes=1000, max_bytes=1500)


@pytest.mark.parametrize("coding", [*CODERS, "GZIP"])
async def test_a_compressed_request_is_served(small, coding):
    packed = CODERS[coding.lower()](BODY)
    answer = await small.post("/v2/models/m/infer", content=packed, headers={"Content-Encoding": coding})
    assert answer.status_code == 200
    assert answer.json()["outputs"][0]["data"] == [1, 1, 1, 2, 2, 2]


async def test_the_json_length_counts_what_was_compressed(small):
    data = rows_of(5, 2).tobytes()
    tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [tensor]})
    headers = {"Content-Encoding": "deflate", "Inference-Header-Content-Length": str(len(head))}
    answer = await small.post("/v2/models/m/infer", content=zlib.compress(head + data), headers=headers)
    assert answer.json()["outputs"][0]["data"] == [5, 5, 5, 6, 6, 6]


@pytest.mark.parametrize(
    ("body", "coding", "refused"),
    [
        (b"", "gzip", (400, "invalid_request")),
        (b"no gzip", "gzip", (400, "invalid_request")),
        (gzip.compress(BODY), "deflate", (400, "invalid_request")),
        (gzip.compress(BODY)[:-9], "gzip", (400, "invalid_request")),
        (gzip.compress(BODY) + b"x", "gzip", (400, "invalid_request")),
        (gzip.compress(b" " * 1001), "gzip", (413, "payload_too_large")),
        (gzip.compress(bytes(10_000_000))[:900], "gzip", (413, "payload_too_large")),
        (BODY, "br", (415, "unsupported_encoding")),
        (gzip.compress(BODY), "gzip, deflate", (415, "unsupported_encoding")),
    ],
)
async def test_what_cannot_be_unpacked_is_refused_and_leaves_nothing_in_flight(small, stage, body, coding, refused):
    answer = await small.post("/v2/models/m/infer", content=body, headers={"Content-Encoding": coding})
    assert (answer.status_code, answer.json()["code"]) == refused
    if answer.status_code == 415:
        assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert stage.registry.resolve("m").account.in_flight == 0
    plain = await small.infer([1])
    assert plain.status_code == 200


@pytest.fixture
def unpacked(monkeypatch):
    """How much was unpacked after each step, beside what counted as in flight then. Steps are small."""
    seen = []
    monkeypatch.setattr(admission, "INFLATE_STEP", 10_000)

    def watch(in_flight):
        class Watched(Inflater):
            def more(self, room):
                done = super().more(room)
                seen.append((len(self.plain), in_flight.nbytes))
                return done

        monkeypatch.setattr(admission, "Inflater", Watched)
        return seen

    return watch


async def test_what_is_unpacked_counts_before_it_is_there_and_no_further_than_there_is_room(make_api, stage, unpacked):
    stage.load()
    api = make_api(max_body_bytes=100_000, max_bytes=100_000, max_json_bytes=100_000)
    in_flight = api.handler.in_flight
    seen = unpacked(in_flight)
    packed, headers = gzip.compress(BODY + b" " * 95_000), {"Content-Encoding": "gzip"}
    assert (await api.post("/v2/models/m/infer", content=packed, headers=headers)).status_code == 200
    assert len(seen) == 10
    assert all(there <= counted for there, counted in seen)
    seen.clear()
    in_flight.hold(70_000)
    refused = await api.post("/v2/models/m/infer", content=packed, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert max(there for there, _ in seen) <= 30_000
    in_flight.hold(-70_000)
    assert (in_flight.requests, in_flight.nbytes) == (0, 0)


@pytest.mark.parametrize("accept", ["gzip", "deflate", "gzip, deflate, br"])
async def test_an_answer_is_compressed_for_who_asks(api, stage, accept):
    stage.load()
    document = {"inputs": [{"name": "x", "shape": [100, 3], "datatype": "FP32", "data": [7] * 300}]}
    async with api.client({"Accept-Encoding": accept}) as client:
        answer = await client.post("/v2/models/m/infer", json=document)
    assert answer.headers["content-encoding"] == accept.partition(",")[0]
    assert answer.json()["outputs"][0]["data"] == [7] * 300
    assert int(answer.headers["content-length"]) < 300


async def test_small_answers_and_errors_are_sent_as_they_are(api, stage):
    stage.load()
    async with api.client({"Accept-Encoding": "gzip"}) as client:
        answers = [
            await client.post("/v2/models/m/infer", content=BODY),
            await client.post("/v2/models/m/infer", content=b" " * 5000),
            await client.post(f"/v2/models/{'x' * 5000}/infer", content=BODY),
        ]
    assert [answer.status_code for answer in answers] == [200, 400, 404]
    assert not any("content-encoding" in answer.headers for answer in answers)


async def test_nothing_else_may_be_compressed(api):
    answer = await api.post("/v2/repository/index", content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")
