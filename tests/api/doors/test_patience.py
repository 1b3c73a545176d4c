"""Clients that take too long. The limits are injected, small; nothing here depends on how small."""

import asyncio
import contextlib
import json
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.answers import Answers
from app.api.exchange import Reply
from app.api.patience import LEAST_RATE, Patience
from tests.api.doors.harness import chunked, eventually, fails, request, serve

pytestmark = pytest.mark.anyio

SOON = 0.05


async def looks(connection):
    """Wait until the timer has looked at the connection a few times."""
    patience = connection._patience
    for _ in range(3):
        await eventually(lambda timer=patience._timer: patience._timer is not timer)


@pytest.fixture(params=["fast", "asgi"])
async def server(request):
    async with serve(request.param, state={"read_timeout": SOON}) as running:
        yield running


@pytest.mark.parametrize(
    "sent",
    [
        b"P",
        request(b"x")[:40],
        request(b"x" * 10, length=11),
        request(b"x" * 300_000, length=300_001),
        chunked(b"x" * 10)[:-5],
        b"POST /other HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
async def test_a_request_that_does_not_go_on_is_answered_408(server, client, sent):
    await client.send(sent)
    response = await client.response()
    assert response.status == 408
    assert response.headers["connection"] == "close"
    assert json.loads(response.body)["code"] == "request_timeout"
    assert await client.closed()
    assert server.handler.in_flight == 0
    assert not server.handler.started


async def test_a_stalled_request_behind_another_is_answered_in_its_turn(server, client):
    await client.send(request(b"1", "slow") + request(b"2", length=100))
    await server.handler.until(lambda: server.handler.started)
    (connection,) = server.connections
    await eventually(lambda: connection._cut)
    server.handler.gate.set()
    assert (await client.response()).body == b"1"
    assert (await client.response()).status == 408
    assert await client.closed()


async def test_a_stalled_refusal_behind_another_is_answered_in_its_turn():
    async with serve("fast", state={"read_timeout": SOON}) as server:
        client = await server.connect()
        await client.send(request(b"1", "slow") + request(b"2", "missing", length=100))
        await server.handler.until(lambda: server.handler.started)
        (connection,) = server.connections
        await eventually(lambda: connection._cut)
        server.handler.gate.set()
        assert (await client.response()).body == b"1"
        assert (await client.response()).status == 404
        assert await client.closed()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (request(b"x", length=1000), b"y"),
        (chunked(b"x")[:-5], b"1\r\ny\r\n"),
        (b"POST /other HTTP/1.1\r\nContent-Length: 1000\r\n\r\nx", b"y"),
    ],
)
async def test_a_body_may_take_long_while_it_goes_on(begin, more):
    async with serve("fast") as server:
        client = await server.connect()
        await client.send(begin)
        await eventually(lambda: server.connections)
        (connection,) = server.connections
        await eventually(lambda: connection._stage)
        for _ in range(3):
            before = connection._patience._due()
            await client.send(more)
            await eventually(lambda before=before: connection._patience._due() > before)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (request(b"x", length=1000), b"y"),
        (chunked(b"x")[:-5], b"1\r\ny\r\n"),
        (b"POST /other HTTP/1.1\r\nContent-Length: 1000\r\n\r\nx", b"y"),
    ],
)
async def test_a_body_that_trickles_is_not_waited_for(server, client, begin, more):
    await client.send(begin)
    await eventually(lambda: server.connections)
    (connection,) = server.connections
    started = connection._patience.since
    while server.connections and not connection._deaf:
        with contextlib.suppress(ConnectionError):
            await client.send(more)
        await asyncio.sleep(SOON / 5)
        assert connection._patience.since <= started + 1000 / LEAST_RATE
    assert (await client.response()).status == 408


@pytest.mark.parametrize("sent", [request(b"x", "m", "X-Request-Timeout-Ms: 200", length=300_000), None])
@pytest.mark.parametrize("waiting", [False, True])
async def test_a_body_that_is_still_arriving_at_its_deadline_is_answered_504(door, waiting, sent):
    sent = sent or chunked(b"x", headers=("X-Request-Timeout-Ms: 200",))[:-5]
    async with serve(door, state={"read_timeout": 60}) as server:
        client = await server.connect()
        await client.send(sent)
        if waiting:
            await client.send(b"1\r\nx\r\n")
        await fails(client, 504, "deadline_exceeded")
        await server.handler.until(lambda: not server.handler.in_flight)
        assert server.handler.tickets[0].code == "deadline_exceeded"
        assert not server.handler.started


async def test_a_body_in_time_is_not_troubled_by_its_deadline(door):
    async with serve(door) as server:
        client = await server.connect()
        whole = request(b"x" * 100_000, "m", "X-Request-Timeout-Ms: 20000")
        await client.send(whole[:1000])
        await server.handler.until(lambda: server.handler.admitted)
        await client.send(whole[1000:])
        assert (await client.response()).body == b"x" * 100_000
        assert (await client.ask(request(b"next"))).body == b"next"


async def test_a_long_answer_is_waited_for(server, client):
    await client.send(request(b"x", "slow"))
    await server.handler.until(lambda: server.handler.started)
    (connection,) = server.connections
    assert connection._patience._due() == inf
    await looks(connection)
    server.handler.gate.set()
    assert (await client.response()).body == b"x"


async def test_an_application_that_does_not_read_is_waited_for(server, client):
    await client.send(b"POST /slow HTTP/1.1\r\nHost: test\r\nContent-Length: 300000\r\n\r\n" + b"x" * 200_000)
    await eventually(lambda: server.connections)
    (connection,) = server.connections
    await eventually(lambda: connection.flow.read_paused)
    await looks(connection)
    connection._patience._read_timeout = 60.0  # from here on the client is to be in time, on any machine
    server.handler.gate.set()
    await client.send(b"x" * 100_000)
    assert (await client.response()).body == b"asgi /slow " + b"x" * 300_000


async def test_an_idle_connection_is_closed_without_a_word():
    async with serve("fast", timeout_keep_alive=1.0) as server:
        client, silent = await server.connect(), await server.connect()
        assert (await client.ask(request(b"x"))).body == b"x"
        assert await client.closed()
        assert await silent.closed()


@pytest.mark.parametrize("leaves", [True, False])
async def test_bytes_that_no_client_takes_count_as_in_flight_until_it_does_or_leaves(door, leaves):
    async with serve(door) as server:
        server.handler.answer = Reply(200, (), [b"x" * (32 << 20)])
        client = await server.connect(limit=1000)
        await client.send(request(b"1"))
        await server.handler.until(lambda: server.handler.held)
        assert 16 << 20 < server.handler.held <= (32 << 20) + 200
        if leaves:
            client.reset()
        else:
            assert len((await client.response()).body) == 32 << 20
        await server.handler.until(lambda: not server.handler.held)


@pytest.mark.parametrize("door", ["fast", "asgi"])
async def test_a_client_that_takes_no_answer_is_dropped(door):
    async with serve(door, timeout_keep_alive=0.25) as server:
        server.handler.answer = Reply(200, (), [b"x" * (32 << 20)])
        client = await server.connect(limit=1000)
        await client.send(request(b"1"))
        await server.handler.until(lambda: server.handler.started)
        await eventually(lambda: not server.connections)


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
async def test_a_client_that_does_not_take_the_end_of_its_answer_is_dropped(monkeypatch, last):
    monkeypatch.setattr("app.api.slices.SLICE_BYTES", 32 << 20)  # so that nothing is left to hand over
    async with serve("fast", timeout_keep_alive=0.25) as server:
        server.handler.answer = Reply(200, (), [b"x" * (32 << 20)])
        client = await server.connect(limit=1000)
        await client.send(request(b"1").replace(b"\r\n\r\n", b"\r\n" + last + b"\r\n"))
        await server.handler.until(lambda: server.handler.held)
        await eventually(lambda: not server.connections)
        assert server.handler.held == 0


@pytest.mark.parametrize(("taken", "dropped"), [(0, True), (500, True), (600, False)])
async def test_an_answer_must_be_taken_at_the_least_rate(taken, dropped):
    """One look, a second after the one before, at a client that took so many bytes meanwhile."""

    class Transport:
        left, aborted = 10_000, False

        def is_closing(self):
            return False

        def get_write_buffer_size(self):
            return self.left

        def abort(self):
            self.aborted = True

    transport, loop = Transport(), asyncio.get_running_loop()
    flow = SimpleNamespace(write_paused=True)
    connection: Any = SimpleNamespace(
        transport=transport, flow=flow, loop=loop, timeout_keep_alive=1.0, server_state=None, app_state={}
    )
    answers = Answers(connection, None, lambda cycle, app: None, lambda: None)
    patience = Patience(connection, answers, 30.0, lambda: None, lambda: None)
    patience.cancel()
    patience._expire()
    assert not transport.aborted  # so far there is nothing to compare with
    transport.left -= taken
    patience._expire()
    assert transport.aborted is dropped
