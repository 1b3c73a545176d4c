"""What is no HTTP request, or too much of one: an error in the common form, in its turn, and the end."""

import asyncio
import random

import pytest

from app.api.malformed import MAX_HEAD_BYTES
from tests.api.doors.harness import chunked, fails, request

pytestmark = pytest.mark.anyio

GET = b"GET /other HTTP/1.1\r\nHost: test\r\n\r\n"


@pytest.fixture(params=["fast", "asgi"])
def door(request):
    """Both run on the protocol of our own."""
    return request.param


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"POST /v2/models/m/infer HTTP/9.9\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: test\r\n\r\n",
        b"POST /other HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_malformed_requests_are_answered_400(server, client, data):
    await client.send(data)
    await fails(client, 400, "malformed_request")
    assert server.handler.in_flight == 0


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT example.com:80",
        b"CONNECT /v2/models/m/infer",
        b"GET http://",
        b"GET http://test",
        b"GET http:///other",
        b"GET http://test:99999/other",
        b"GET *",
        b"POST *",
        b"GET /other?\x7f\x01",
    ],
)
async def test_targets_that_no_route_can_have_are_answered_400(client, line):
    await client.send(line + b" HTTP/1.1\r\nHost: test\r\n\r\n" + GET)
    await fails(client, 400, "malformed_request")


@pytest.mark.parametrize("target", [b"http://test/other", b"http://other:1/other?a=b", b"/other?http://x"])
async def test_a_target_that_is_a_whole_address_is_looked_up_by_its_path(client, target):
    assert (await client.ask(b"GET " + target + b" HTTP/1.1\r\nHost: test\r\n\r\n")).body == b"asgi /other "


async def test_a_refusal_of_the_door_has_the_request_id_that_was_sent_or_a_new_one(server):
    long = b"X-Long: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n"
    ids = []
    for headers in (b"X-Request-Id: mine\r\n", b"", b""):
        client = await server.connect()
        response = await client.ask(b"POST /v2/models/m/infer HTTP/1.1\r\n" + headers + long)
        assert response.status == 431
        ids.append(response.headers["x-request-id"])
    assert ids[0] == "mine"
    assert "" != ids[1] != ids[2]


async def test_the_id_of_the_request_before_is_not_that_of_a_malformed_one(client):
    await client.ask(request(b"x", "m", "X-Request-Id: mine"))
    assert (await client.ask(b"nonsense\r\n\r\n")).headers["x-request-id"] != "mine"


async def test_a_malformed_request_is_answered_in_its_turn(server, client):
    await client.send(request(b"1", "slow") + request(b"2") + b"nonsense\r\n\r\n" + request(b"3"))
    await server.handler.until(lambda: server.handler.started)
    server.handler.gate.set()
    assert [(await client.response()).body for _ in range(2)] == [b"1", b"2"]
    await fails(client, 400, "malformed_request")
    assert len(server.handler.started) == 2


async def test_a_malformed_body_behind_others_is_answered_in_its_turn(server, client):
    for broken in ("/v2/models/m/infer", "/other"):
        client = await server.connect()
        head = f"POST {broken} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await client.send(request(b"1", "slow") + head + b"3\r\nabc\r\nzz\r\n")
        server.handler.gate.set()
        assert (await client.response()).body == b"1"
        await fails(client, 400, "malformed_request")
    assert server.handler.in_flight == 0


@pytest.mark.parametrize("line", [b"POST /v2/models/m/infer HTTP/1.1\r\n", b"GET /other HTTP/1.1\r\n"])
@pytest.mark.parametrize("whole", [True, False])
async def test_headers_beyond_the_limit_are_refused(server, client, line, whole):
    lines = b"X-Long: %b\r\n" % (b"y" * 1000) * (MAX_HEAD_BYTES // 1000 + 1)
    if whole:
        await client.send(line + lines + b"\r\n")
    else:
        for start in range(0, len(lines), 5000):
            await client.send((line if start == 0 else b"") + lines[start : start + 5000])
            await asyncio.sleep(0)
    await fails(client, 431, "headers_too_large")
    assert not server.handler.admitted


async def test_headers_up_to_the_limit_are_taken(client):
    lines = ["X-Long: " + "y" * 1000] * (MAX_HEAD_BYTES // 1000 - 2)
    assert (await client.ask(request(b"x" * 100_000, "m", *lines))).body == b"x" * 100_000


@pytest.mark.parametrize("endless", [b"X-Trailer: ", b"1;extension="])
async def test_trailers_and_extensions_without_end_are_refused(server, client, endless):
    await client.send(chunked(b"abc")[:-2] if endless.startswith(b"X") else chunked(b"abc")[:-5])
    await client.send(endless)
    await server.handler.until(lambda: server.handler.admitted)
    for _ in range(MAX_HEAD_BYTES // 5000 + 2):
        await client.send(b"y" * 5000)
        await asyncio.sleep(0)
    await fails(client, 431, "headers_too_large")


async def test_random_bytes_do_no_harm(server):
    dice = random.Random(7)
    valid = request(b"body" * 10) + chunked(b"one", b"two") + GET
    for _ in range(150):
        data = bytearray(valid)
        for _ in range(dice.randrange(1, 8)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        client = await server.connect()
        await client.send(bytes(data) if dice.random() < 0.7 else dice.randbytes(dice.randrange(1, 300)))
        await asyncio.sleep(0)
        await client.close()
    client = await server.connect()
    assert (await client.ask(request(b"alive"))).body == b"alive"
    await server.handler.until(lambda: server.handler.in_flight == 0)
