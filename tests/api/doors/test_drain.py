"""The end of the server: what runs is answered, what is idle is closed."""

import pytest

from tests.api.doors.harness import eventually, request, serve

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["fast", "asgi"])
def door(request):
    return request.param


@pytest.fixture
async def stopping(server):
    """What uvicorn does first when it ends; at the end of the test, nothing may be left for it to wait for."""

    def stop():
        for connection in list(server.connections):
            connection.shutdown()

    yield stop
    await eventually(lambda: not server.connections and not server.uvicorn.server_state.tasks)


async def test_idle_connections_close_at_once(server, client, stopping):
    fresh = await server.connect()
    await client.ask(request(b"x"))
    stopping()
    assert await client.closed()
    assert await fresh.closed()


async def test_a_running_request_is_answered_and_told_that_it_was_the_last(server, client, stopping):
    await client.send(request(b"x", "slow"))
    await server.handler.until(lambda: server.handler.started)
    stopping()
    server.handler.gate.set()
    response = await client.response()
    assert (response.body, response.headers["connection"]) == (b"x", "close")
    assert await client.closed()


async def test_a_request_whose_body_is_on_its_way_is_answered(server, client, stopping):
    data = request(b"x" * 100)
    await client.send(data[:-50])
    await server.handler.until(lambda: server.handler.admitted)
    stopping()
    await client.send(data[-50:])
    assert (await client.response()).body == b"x" * 100
    assert await client.closed()


async def test_pipelined_requests_are_answered_before_the_end(server, client, stopping):
    await client.send(request(b"1", "slow") + request(b"2") + b"GET /3 HTTP/1.1\r\nHost: test\r\n\r\n")
    await server.handler.until(lambda: len(server.handler.started) == 1)
    stopping()
    server.handler.gate.set()
    answers = [await client.response() for _ in range(3)]
    assert [answer.body for answer in answers] == [b"1", b"2", b"asgi /3 "]
    assert [answer.headers.get("connection") for answer in answers] == [None, None, "close"]
    assert await client.closed()


async def test_an_asgi_request_in_progress_is_answered(server, client, stopping):
    await client.send(b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n")
    await eventually(lambda: server.uvicorn.server_state.tasks)
    stopping()
    server.handler.gate.set()
    response = await client.response()
    assert (response.body, response.headers["connection"]) == (b"asgi /slow ", "close")
    assert await client.closed()


async def test_uvicorn_cancels_what_takes_too_long():
    async with serve("fast", timeout_graceful_shutdown=0) as server:
        client = await server.connect()
        await client.send(request(b"x", "slow"))
        await server.handler.until(lambda: server.handler.started)
        for connection in list(server.connections):
            connection.shutdown()
        for task in server.uvicorn.server_state.tasks:
            task.cancel()
        assert await client.closed()
        assert server.handler.in_flight == 0
        assert len(server.handler.cancelled) == 1
