"""The connection of our own: what it takes, what it leaves to ASGI, what it does not copy, when it stops reading."""

import asyncio
import logging
import weakref

import pytest

from app.api.answers import MAX_WAITING
from app.api.connection import FORGETTABLE_BYTES
from app.api.exchange import Reply
from app.api.patience import GIVE_WAY_BYTES, LINGER_SECONDS, Patience
from tests.api.doors.harness import ScriptedHandler, chunked, eventually, fails, request, serve

pytestmark = pytest.mark.anyio

GET = b"GET /other HTTP/1.1\r\nHost: test\r\n\r\n"


@pytest.fixture(params=["fast", "asgi"])
def door(request):
    """Both run on the protocol of our own."""
    return request.param


@pytest.fixture
async def fast():
    async with serve("fast") as running:
        yield running


async def test_the_answer_to_an_unread_request_survives_its_body(fast):
    fast.handler.limit = 100_000
    client = await fast.connect()
    await client.send(request(b"x" * (8 << 20)))
    await fails(client, 413, "payload_too_large")
    await client.close()
    await eventually(lambda: not fast.connections)


async def test_a_client_that_goes_on_sending_is_not_listened_to_for_long(fast):
    fast.handler.limit = 100_000
    client = await fast.connect()
    await client.send(request(b"x", length=100_001))
    assert (await client.response()).status == 413
    (connection,) = fast.connections
    patience = connection._patience
    last = max(patience.since, connection._answers.since)
    assert patience._due() == last + LINGER_SECONDS
    await client.send(b"x" * 1000)
    patience.since = connection._answers.since = last - LINGER_SECONDS
    patience._look()
    assert await client.closed()
    await eventually(lambda: not fast.connections)


async def test_other_routes_and_methods_go_to_asgi(fast):
    client = await fast.connect()
    for method, path in [("GET", "/v2/models/m/infer"), ("POST", "/v2/models/m/infer/"), ("POST", "/v2/models//infer")]:
        response = await client.ask(f"{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nab".encode())
        assert response.body == f"asgi {path} ab".encode()
    assert not fast.handler.admitted


async def test_a_request_that_asgi_answers_unread_does_not_disturb_the_next(client):
    await client.send(b"POST /unread HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n")
    assert (await client.response()).body == b"asgi /unread "
    await client.send(b"x" * 100_000 + request(b"next"))
    assert (await client.response()).body == b"next"


async def test_bodies_are_copied_at_most_once(fast):
    client = await fast.connect()
    await client.ask(request(b"x" * 400))
    await client.ask(request(b"x" * 400))
    await client.send(request(b"y" * 400)[:-1])
    await fast.handler.until(lambda: len(fast.handler.admitted) == 3)
    await client.ask(b"y")
    await client.ask(chunked(b"z", b"z"))
    assert fast.handler.types == [bytes, bytes, memoryview, bytearray]


async def test_a_repeated_head_with_another_body_length_is_another_request(fast):
    client = await fast.connect()
    for body in (b"x" * 10, b"y" * 10, b"z" * 11, b"u" * 10, b"v" * 9):
        assert (await client.ask(request(body))).body == body
    await client.send(request(b"w" * 10) + request(b"q" * 10))
    assert [(await client.response()).body for _ in range(2)] == [b"w" * 10, b"q" * 10]


async def test_a_repeated_request_waits_its_turn(fast):
    fast.handler.gate.set()
    client = await fast.connect()
    await client.ask(request(b"0", "slow"))
    fast.handler.gate.clear()
    await client.send(request(b"1", "slow"))
    await fast.handler.until(lambda: len(fast.handler.started) == 2)
    await client.send(request(b"2", "slow"))
    await fast.handler.until(lambda: len(fast.handler.admitted) == 3)
    assert len(fast.handler.started) == 2
    fast.handler.gate.set()
    assert [(await client.response()).body for _ in range(2)] == [b"1", b"2"]


async def test_a_body_that_looks_like_the_last_request_is_a_body(fast):
    client = await fast.connect()
    repeated = request(b"x")
    await client.ask(repeated)
    assert (await client.ask(request(b"", "missing", length=len(repeated)))).status == 404
    (connection,) = fast.connections
    await client.send(repeated)
    await eventually(lambda: connection._receiving is None)
    assert (await client.ask(request(b"next"))).body == b"next"
    assert len(fast.handler.admitted) == 2


async def test_a_repeated_request_is_not_served_after_the_last_answer(fast):
    client = await fast.connect()
    await client.ask(request(b"x"))
    await client.send(b"nonsense\r\n\r\n")
    assert (await client.response()).status == 400
    await client.send(request(b"x"))
    await client.close()
    await eventually(lambda: not fast.connections)
    assert len(fast.handler.admitted) == 1


async def test_a_line_break_after_a_body_is_no_part_of_the_next_head(fast):
    client = await fast.connect()
    for _ in range(3):
        await client.send(request(b"ab\r\n\r\n") + b"\r\n")
        assert (await client.response()).body == b"ab\r\n\r\n"


async def test_a_connection_that_waits_holds_nothing_of_its_last_request(fast):
    client = await fast.connect()
    for number in range(3):  # the first is parsed, the others are known by their bytes
        assert (await client.ask(request(b"x"))).status == 200
        assert len(fast.connections) == 1
        ticket = weakref.ref(fast.handler.tickets.pop())
        assert ticket() is None, number


async def test_a_repeated_refusal_is_refused(fast):
    client = await fast.connect()
    for _ in range(3):
        assert (await client.ask(request(b"x", "missing"))).status == 404
    assert (await client.ask(request(b"x"))).status == 200


async def test_an_offer_to_upgrade_is_declined_by_answering(fast):
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    client = await fast.connect()
    for size in (0, 100, 300_000, 100):
        assert (await client.ask(request(b"x" * size, "m", *offer))).body == b"x" * size
    await client.send(request(b"1", "m", *offer) + request(b"2"))
    assert [(await client.response()).body for _ in range(2)] == [b"1", b"2"]
    await client.send(request(chunked(b"3"), "m", "Transfer-Encoding: chunked", *offer))
    await fails(client, 400, "malformed_request")


async def test_thousands_of_offers_to_upgrade_at_once_are_declined_one_after_the_other(fast):
    """In compiled code nothing but the end of the process would bound a call for each within that for the last."""
    client, offers = await fast.connect(), 2000
    sending = asyncio.ensure_future(client.send(request(b"x", "m", "Connection: Upgrade", "Upgrade: h2c") * offers))
    for _ in range(offers):
        assert (await client.response()).body == b"x"
    await sending


async def test_the_body_behind_an_offer_to_upgrade_is_never_read_as_a_request(server, client):
    inner = b"GET /inner HTTP/1.1\r\nHost: test\r\n\r\n"
    head = b"POST /outer HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    await client.send(head + b"Content-Length: %d\r\n\r\n" % len(inner))
    await client.send(inner[:10])
    await client.send(inner[10:] + b"GET /next HTTP/1.1\r\nHost: test\r\n\r\n")
    assert [(await client.response()).body for _ in range(2)] == [b"asgi /outer " + inner, b"asgi /next "]
    await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + inner)
    await fails(client, 400, "malformed_request")


class Switched(asyncio.Protocol):
    """What a connection becomes after an upgrade that is supported."""

    def __init__(self, config, server_state, app_state):
        pass

    def connection_made(self, transport):
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\ncontent-length: 0\r\n\r\n")
        self.transport = transport

    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))


async def test_a_supported_upgrade_is_made_after_other_requests():
    async with serve("fast", ws=Switched) as server:
        client = await server.connect()
        await client.ask(request(b"x"))
        (connection,) = server.connections
        head = b"GET /socket HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert (await client.ask(head)).status == 101
        assert (await client.response()).body.startswith(b"GET /socket")
        connection._patience.since = connection._answers.since = 0.0
        connection._patience._look()  # its limits are no longer those of this connection
        assert (await client.ask(b"ping")).body == b"ping"


async def test_a_body_that_nobody_wants_is_no_part_of_another_request(fast):
    client = await fast.connect()
    slow = b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n"
    await client.send(slow + request(b"x" * (FORGETTABLE_BYTES + 1), "missing"))
    await eventually(lambda: fast.uvicorn.server_state.tasks)
    fast.handler.gate.set()
    assert (await client.response()).body == b"asgi /slow "
    assert (await client.response()).status == 404


async def test_reading_stops_when_many_requests_wait(server, client):
    await client.send(request(b"0", "slow"))
    await server.handler.until(lambda: server.handler.started)
    (connection,) = server.connections
    for number in range(1, MAX_WAITING):
        await client.send(request(b"%d" % number))
    await eventually(lambda: len(connection._answers._waiting) == MAX_WAITING - 1)
    assert not connection.flow.read_paused
    await client.send(request(b"last"))
    await eventually(lambda: connection.flow.read_paused)
    server.handler.gate.set()
    bodies = [(await client.response()).body for _ in range(MAX_WAITING + 1)]
    assert bodies == [b"%d" % number for number in range(MAX_WAITING)] + [b"last"]
    assert not connection.flow.read_paused


async def test_no_answer_is_begun_while_the_client_takes_none(fast):
    size = 32 << 20
    fast.handler.answer = Reply(200, (), [b"x" * size])
    client = await fast.connect(limit=1000)
    await client.send(request(b"1") + request(b"2"))
    (connection,) = fast.connections
    await fast.handler.until(lambda: fast.handler.started)
    await eventually(lambda: connection.flow.write_paused)
    assert connection.flow.read_paused
    connection.data_received(request(b"3"))  # as TLS may have some left
    assert len(fast.handler.started) == 1
    assert len(connection._answers._waiting) == 2
    for _ in range(3):
        assert (await client.response()).body == b"x" * size
    assert len(fast.handler.started) == 3


async def test_nothing_is_begun_on_a_connection_that_closes_during_a_large_answer(fast):
    fast.handler.answer = Reply(200, (), [b"x" * (32 << 20)])
    client = await fast.connect(limit=1000)
    await client.send(request(b"1") + request(b"2"))
    (connection,) = fast.connections
    await eventually(lambda: connection.flow.write_paused)
    connection.transport.close()
    taken = await client.reader.read()
    assert 0 < len(taken) < 32 << 20
    assert len(fast.handler.started) == 1
    assert (fast.handler.in_flight, fast.handler.held) == (0, 0)


async def test_the_access_log_is_that_of_uvicorn(caplog):
    with caplog.at_level(logging.INFO, "uvicorn.access"):
        async with serve("fast", access_log=True) as server:
            client = await server.connect()
            for head in ("x=1", "x=1"):
                await client.ask(request(b"x", target=f"/v2/models/m/infer?{head}"))
            await client.ask(GET)
    port = client.writer.get_extra_info("sockname")[1]
    infer = f'127.0.0.1:{port} - "POST /v2/models/m/infer?x=1 HTTP/1.1" 200'
    logged = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert logged == [infer, infer, f'127.0.0.1:{port} - "GET /other HTTP/1.1" 200']


async def test_requests_are_counted_for_uvicorn(fast):
    client = await fast.connect()
    await client.ask(request(b"x"))
    await client.ask(GET)
    assert fast.uvicorn.server_state.total_requests == 2


class Broken(ScriptedHandler):
    """Its refusals fail as well."""

    def refuse(self, head, error):
        raise KeyError("a bug of ours")


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_bug_of_ours_is_logged_and_not_the_clients_fault(caplog, monkeypatch, repeated):
    monkeypatch.setattr("app.api.patience.LINGER_SECONDS", 0.0)
    async with serve("fast", Broken()) as fast:
        client = await fast.connect()
        if repeated:
            assert (await client.ask(request(b"first"))).status == 200
        await client.send(request(b"x", "missing"))
        await fails(client, 500, "internal")
        await eventually(lambda: not fast.connections)
    [record] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert isinstance(record.exc_info[1], KeyError)


async def test_a_bug_of_ours_ends_the_connection_where_other_answers_are_owed(caplog):
    async with serve("fast", Broken()) as fast:
        client = await fast.connect()
        await client.send(request(b"x", "slow"))
        await fast.handler.until(lambda: fast.handler.started)
        await client.send(request(b"x", "missing"))
        assert await client.closed()
        await fast.handler.until(lambda: fast.handler.cancelled)
        assert fast.handler.in_flight == 0
    assert "a bug of ours" in caplog.text


async def test_a_bug_of_ours_keeps_no_place_in_flight(caplog):
    class Unsizeable(ScriptedHandler):
        def admit(self, head):
            ticket = super().admit(head)
            ticket.grow = None  # a chunked body cannot be counted, nor the failure told
            return ticket

        def refuse(self, head, error):
            raise KeyError("a bug of ours")

    async with serve("fast", Unsizeable()) as fast:
        client = await fast.connect()
        await client.send(chunked(b"x"))
        assert await client.closed()
        await eventually(lambda: not fast.connections)
        assert fast.handler.in_flight == 0
    assert "a bug of ours" in caplog.text


async def test_that_no_more_is_read_is_no_bug(fast, caplog):
    client = await fast.connect()
    await client.send(request(b"x", "m", "Connection: close") + request(b"y"))
    assert (await client.response()).body == b"x"
    assert await client.closed()
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.plain
async def test_a_connection_with_a_large_body_gives_way_after_each_piece(monkeypatch):
    """The loop would read megabytes of it in a row, and others wait."""
    turns = []
    took = Patience.took

    def watch(self, nbytes, now):
        took(self, nbytes, now)
        turns.append((nbytes >= GIVE_WAY_BYTES, self._transport.is_reading()))

    monkeypatch.setattr(Patience, "took", watch)
    async with serve("fast") as server:
        client = await server.connect()
        for body in (b"x" * (3 << 20), b"y" * (3 << 20)):
            assert (await client.ask(request(body))).body == body
    assert sum(large for large, _ in turns) > 2
    assert all(reading is not large for large, reading in turns)
