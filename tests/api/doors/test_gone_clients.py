"""Clients that go away in every phase: nobody works for them, and nothing of them stays."""

import asyncio

import pytest

from app.api.exchange import Reply
from tests.api.doors.harness import chunked, eventually, request

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["close", "reset"])
def leave(request):
    async def go(client):
        if request.param == "close":
            await client.close()
        else:
            client.reset()

    return go


async def gone(server):
    """Wait until the server has noticed."""
    await eventually(lambda: not server.connections and not server.uvicorn.server_state.tasks)
    assert server.handler.in_flight == 0


async def test_during_the_headers(server, client, leave):
    await client.send(request(b"x")[:40])
    await leave(client)
    await gone(server)
    assert not server.handler.admitted


@pytest.mark.parametrize("sent", [request(b"x" * 10, length=1000), chunked(b"x" * 10)[:-5]])
async def test_during_the_body(server, client, leave, sent):
    await client.send(sent)
    await server.handler.until(lambda: server.handler.in_flight == 1)
    await leave(client)
    await gone(server)
    assert not server.handler.started


async def test_while_it_is_handled(server, client, leave):
    await client.send(request(b"x", "slow"))
    await server.handler.until(lambda: server.handler.started)
    await leave(client)
    await gone(server)
    assert len(server.handler.cancelled) == 1


@pytest.mark.parametrize("door", ["fast"])
async def test_in_the_turn_of_the_loop_in_which_the_body_came(server, client):
    await eventually(lambda: server.connections)
    (connection,) = server.connections
    connection.data_received(request(b"x", "slow"))
    assert server.handler.in_flight == 1
    connection.connection_lost(None)
    assert connection._patience._timer.cancelled()
    connection.transport.abort()
    await gone(server)
    assert len(server.handler.started) == len(server.handler.cancelled)


async def test_before_it_is_handled(server, client, leave):
    # The request and the end of the connection are read in one turn of the loop, or in two.
    client.writer.write(request(b"x", "slow"))
    await leave(client)
    await gone(server)
    assert len(server.handler.started) == len(server.handler.cancelled)


@pytest.mark.parametrize("door", ["fast", "asgi"])  # uvicorn tells only the last of them
async def test_with_others_waiting_behind(server, client, leave):
    await client.send(request(b"1", "slow") + request(b"2") + chunked(b"3") + request(b"4", length=100))
    await server.handler.until(lambda: server.handler.started)
    await leave(client)
    await gone(server)
    assert len(server.handler.cancelled) == 1
    assert len(server.handler.started) == 1


async def test_while_the_answer_is_written(server, leave):
    server.handler.answer = Reply(200, (), [b"x" * (32 << 20)])
    client = await server.connect(limit=1000)
    await client.send(request(b"1") + request(b"2", "slow"))
    assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    await leave(client)
    await gone(server)


async def test_a_client_that_closes_its_sending_side_is_gone(server, client):
    await client.send(request(b"x", "slow"))
    await server.handler.until(lambda: server.handler.started)
    client.writer.write_eof()
    await gone(server)
    assert len(server.handler.cancelled) == 1


async def test_a_hundred_at_once_leave_nothing_behind(server, leave):
    handler = server.handler
    clients = [await server.connect() for _ in range(100)]
    for number, client in enumerate(clients):
        await client.send(request(b"x" * number, "slow", length=number if number % 2 else number + 1))
    await handler.until(lambda: len(handler.admitted) == 100 and len(handler.started) == 50)
    assert handler.in_flight == 100
    await asyncio.gather(*map(leave, clients))
    await gone(server)
    assert len(handler.cancelled) == 50


async def test_those_who_stay_are_served(server, leave):
    stays, goes = await server.connect(), await server.connect()
    await stays.send(request(b"stays", "slow"))
    await goes.send(request(b"goes", "slow"))
    await server.handler.until(lambda: len(server.handler.started) == 2)
    await leave(goes)
    await server.handler.until(lambda: server.handler.cancelled)
    server.handler.gate.set()
    assert (await stays.response()).body == b"stays"
