"""One story, two doors: what a client sees is the same through both."""

import asyncio
from typing import Any

import numpy as np
import pytest

from app.api.exchange import Reply
from tests.api.doors.harness import chunked, eventually, fails, request, serve

pytestmark = pytest.mark.anyio


async def test_a_request_is_answered(client, server):
    response = await client.ask(request(b"hello", "resnet", "Content-Type: application/json", version="7"))
    assert response.status == 200
    assert response.body == b"hello"
    assert response.headers["x-model"] == "resnet"
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["server"] == "uvicorn"
    assert "date" in response.headers
    (head,) = server.handler.admitted
    assert (head.model, head.version, head.content_length) == ("resnet", "7", 5)
    assert (b"content-type", b"application/json") in head.headers


async def test_names_in_the_target_are_percent_decoded_and_a_query_is_ignored(client, server):
    await client.ask(request(target="/v2/models/a%20b%25c/versions/%31/infer?verbose=1&x=%2F"))
    (head,) = server.handler.admitted
    assert (head.model, head.version) == ("a b%c", "1")


async def test_a_connection_serves_many_requests(client, server):
    for number in range(20):
        body = b"%d" % number * number
        assert (await client.ask(request(body))).body == body
    assert server.handler.in_flight == 0
    assert len(server.connections) == 1


async def test_the_headers_that_uvicorn_renews_are_renewed(client, server):
    await client.ask(request(b"x"))
    server.uvicorn.server_state.default_headers = [(b"date", b"tomorrow")]
    assert (await client.ask(request(b"x"))).headers["date"] == "tomorrow"


async def test_a_repeated_request_is_a_new_request(client, server):
    for number in range(5):
        assert (await client.ask(request(b"body%d" % number))).body == b"body%d" % number
    received = [head.received_at for head in server.handler.admitted]
    assert received == sorted(set(received))


async def test_an_empty_body_is_a_body(client):
    assert (await client.ask(request(b""))).body == b""
    assert (await client.ask(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\n\r\n")).body == b""
    assert (await client.ask(chunked())).body == b""


async def test_connection_close_is_obeyed(client):
    response = await client.ask(request(b"x", "m", "Connection: close"))
    assert response.body == b"x"
    assert response.headers["connection"] == "close"
    assert await client.closed()


@pytest.mark.parametrize("cut", [None, -1])
async def test_nothing_is_served_after_connection_close(client, server, cut):
    first = request(b"1", "slow", "Connection: close")
    if cut is not None:
        await client.send(first[:cut])
        await eventually(lambda: server.handler.admitted)
    await client.send(first[cut:] + request(b"2") if cut else first + request(b"2"))
    await server.handler.until(lambda: server.handler.started)
    server.handler.gate.set()
    assert (await client.response()).body == b"1"
    assert await client.closed()
    assert len(server.handler.admitted) == 1
    assert server.handler.in_flight == 0


async def test_a_reply_may_close_the_connection(client, server):
    server.handler.answer = Reply(503, ((b"connection", b"close"),), [b"{}"])
    await client.send(request(b"1") + request(b"2"))
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (503, "close")
    assert await client.closed()
    assert server.handler.in_flight == 0


async def test_a_reply_that_closes_the_connection_gives_back_what_waits():
    async with serve("fast") as server:
        server.handler.answer = Reply(503, ((b"connection", b"close"),), [b"{}"])
        client = await server.connect()
        await client.send(request(b"1", "slow") + request(b"2") + request(b"3", length=100))
        await server.handler.until(lambda: server.handler.in_flight == 3)
        server.handler.gate.set()
        assert (await client.response()).status == 503
        assert await client.closed()
        assert server.handler.in_flight == 0
        assert len(server.handler.started) == 1


async def test_http_1_0_ends_the_connection(client):
    response = await client.ask(request(b"x", http="1.0"))
    assert response.body == b"x"
    assert await client.closed()


async def test_pipelined_requests_are_answered_in_order(client):
    await client.send(b"".join(request(b"%d" % number) for number in range(20)))
    assert [(await client.response()).body for _ in range(20)] == [b"%d" % number for number in range(20)]


async def test_pipelined_requests_wait_for_the_first(client, server):
    rest = b"".join(request(b"%d" % number) for number in range(1, 20))
    await client.send(request(b"0", "slow") + rest)
    await server.handler.until(lambda: server.handler.started)
    server.handler.gate.set()
    assert [(await client.response()).body for _ in range(20)] == [b"%d" % number for number in range(20)]


async def test_any_number_of_pipelined_requests_is_answered(client, server):
    await client.send(request(b"first", "slow") + request(b"x") * 1500)
    await server.handler.until(lambda: server.handler.started)
    server.handler.gate.set()
    assert (await client.response()).body == b"first"
    for _ in range(1500):
        assert (await client.response()).body == b"x"
    assert server.handler.in_flight == 0


async def test_pipelined_requests_to_both_sides_keep_their_order(client, server):
    get = b"GET /status HTTP/1.1\r\nHost: test\r\n\r\n"
    slow = b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n"
    post = b"POST /other HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody"
    sent = [slow, request(b"1"), get, request(b"2", "slow"), chunked(b"3"), post, request(b"4", "missing"), get]
    await client.send(b"".join(sent))
    server.handler.gate.set()
    got = [(await client.response()).body for _ in sent]
    assert got[:6] == [b"asgi /slow ", b"1", b"asgi /status ", b"2", b"3", b"asgi /other body"]
    assert b"model_not_found" in got[6]
    assert got[7] == b"asgi /status "


@pytest.mark.parametrize("piece", [1, 7, 100])
async def test_a_request_may_come_in_pieces(client, piece):
    data = request(bytes(range(256)) * 2)
    for start in range(0, len(data), piece):
        await client.send(data[start : start + piece])
        await asyncio.sleep(0)
    assert (await client.response()).body == bytes(range(256)) * 2
    assert (await client.ask(request(b"next"))).body == b"next"


async def test_a_chunked_body_is_put_together(client, server):
    response = await client.ask(chunked(b"one", b"two" * 1000))
    assert response.body == b"one" + b"two" * 1000
    assert server.handler.admitted[0].content_length is None


async def test_a_chunked_body_may_come_byte_by_byte(client):
    for byte in chunked(b"one", b"2", b"three"):
        await client.send(bytes([byte]))
    assert (await client.response()).body == b"one2three"


@pytest.mark.parametrize("door", ["fast", "asgi"])  # uvicorn takes trailers for headers
async def test_trailers_and_chunk_extensions_are_ignored(client, server):
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(head + b"3;name=value\r\nabc\r\n0\r\nX-Trailer: late\r\n\r\n")
    assert (await client.response()).body == b"abc"
    assert all(name != b"x-trailer" for name, _ in server.handler.admitted[0].headers)


async def test_many_tiny_chunks_cost_linear_time(client):
    count = 200_000
    await client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
    await client.send(b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    assert (await client.response()).body == b"x" * count


async def test_large_bodies_and_replies_pass(client, server):
    body = bytes(range(256)) * (20 << 12)
    await client.send(request(body))
    assert (await client.response()).body == body
    assert (await client.ask(request(b"next"))).body == b"next"
    await client.send(chunked(*[body[start : start + 100_000] for start in range(0, len(body), 100_000)]))
    assert (await client.response()).body == body
    assert server.handler.in_flight == 0


async def test_a_reply_of_many_buffers_is_sent_in_order(client, server):
    views: list[Any] = [np.arange(size, dtype=np.float32).reshape(-1, 2).data for size in (6, 0, 2, 100_000, 0)]
    for parts in ([b"a", bytearray(b"b"), b"", *views[:3], b"c"], [b"a", bytearray(b"b"), b"", *views, b"c"]):
        server.handler.answer = Reply(200, (), parts)
        assert (await client.ask(request())).body == b"".join(parts)


async def test_100_continue_is_sent_to_who_was_admitted(client, server):
    await client.send(request(b"", "m", "Expect: 100-continue", length=4))
    assert (await client.response()).status == 100
    assert server.handler.in_flight == 1
    response = await client.ask(b"body")
    assert (response.status, response.body) == (200, b"body")


async def test_a_refusal_comes_instead_of_100_continue(client, server):
    response = await client.ask(request(b"", "missing", "Expect: 100-continue", length=4))
    assert response.status == 404
    assert response.headers["connection"] == "close"
    assert await client.closed()
    assert server.handler.in_flight == 0


async def test_a_refused_request_with_a_small_body_leaves_the_connection_open(client):
    response = await client.ask(request(b"x" * 100, "missing"))
    assert response.status == 404
    assert b'"code":"model_not_found"' in response.body
    assert (await client.ask(request(b"next"))).body == b"next"


@pytest.mark.parametrize("refused", ["announced", "chunked"])
async def test_a_body_over_the_limit_is_refused_and_not_read(client, server, refused):
    server.handler.limit = 100_000
    if refused == "announced":
        await client.send(request(b"x", length=100_001))
    else:
        await client.send(chunked(*[b"x" * 1000] * 101)[:-5])
    response = await client.response()
    assert response.status == 413
    assert response.headers["connection"] == "close"
    assert await client.closed()
    assert server.handler.in_flight == 0
    assert not server.handler.started


@pytest.mark.parametrize("sent", ["apart", "begun with the head", pytest.param("chunked", marks=pytest.mark.plain)])
async def test_a_body_for_which_there_is_no_memory_is_refused_and_keeps_nothing(client, server, monkeypatch, sent):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr("app.api.connection.np.empty", refuse)
    monkeypatch.setattr("app.api.connection.bytearray", refuse, raising=False)
    head, _, body = request(b"x" * 100).partition(b"\r\n\r\n")
    if sent == "apart":
        await client.send(head + b"\r\n\r\n")
        await server.handler.until(lambda: server.handler.admitted)
        await client.send(body[:50])
    else:
        await client.send(chunked(body) if sent == "chunked" else head + b"\r\n\r\n" + body[:50])
    await fails(client, 503, "out_of_memory")
    assert server.handler.in_flight == 0
    assert not server.handler.started
    assert [ticket.code for ticket in server.handler.tickets] == ["out_of_memory"]


async def test_a_body_at_the_limit_is_served(client, server):
    server.handler.limit = 100_000
    assert (await client.ask(request(b"x" * 100_000))).status == 200
    assert (await client.ask(chunked(*[b"x" * 1000] * 100))).status == 200


async def test_a_handler_that_raises_is_answered_for(client, server):
    response = await client.ask(request(b"x", "broken"))
    assert response.status == 500
    assert server.handler.in_flight == 0


async def test_http_1_0_keeps_the_connection_where_both_sides_say_so():
    async with serve("fast") as server:
        client = await server.connect()
        for body in (b"one", b"two"):
            response = await client.ask(request(body, "m", "Connection: keep-alive", http="1.0"))
            assert (response.body, response.headers["connection"]) == (body, "keep-alive")
