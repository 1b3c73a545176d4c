"""Large answers: what is handed to the transport, when, and what is left when the client goes."""

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from app.api.answers import Answers
from app.api.connection import Exchange
from app.api.exchange import Reply, RequestHead
from app.api.slices import SLICE_BYTES, slices
from tests.api.doors.harness import eventually, request, serve

SIZE = 3 * SLICE_BYTES + 5


class Connection:
    """What `Answers` knows of a connection; the loop turns when told, the client takes when told."""

    def __init__(self):
        self.written = b""
        self.in_turn = self.held = 0
        self.soon: list[Any] = []
        self.closing = self.hung_up = False
        self.flow = FlowControl(self)  # type: ignore[arg-type]
        self.transport = self.loop = self.handler = self
        self.server_state = SimpleNamespace(total_requests=0, default_headers=[], tasks=set())
        self.access_log = False
        self.app_state: dict[str, Any] = {}
        self.answers = Answers(self, self, lambda *_: None, self.hang_up)  # type: ignore[arg-type]

    def write(self, data):
        self.written += data
        self.in_turn += len(data)

    def call_soon(self, function, *args):
        self.soon.append((function, args))

    def turn(self):
        """One turn of the loop; the bytes that were handed over in it."""
        self.in_turn = 0
        soon, self.soon = self.soon, []
        for function, args in soon:
            function(*args)
        return self.in_turn

    def pause(self):
        self.flow.pause_writing()

    def resume(self):
        """The client takes what is there."""
        self.flow.resume_writing()
        self.answers.advance()

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def hold(self, nbytes):
        self.held += nbytes

    def hang_up(self):
        self.hung_up = True
        self.answers.forget()


def exchange(reply=None):
    asked = Exchange(RequestHead("m", None, (), 0.0, 0), b"")
    asked.reply = reply
    return asked


def reply(*buffers):
    return Reply(200, (), list(buffers))


def body_of(connection):
    return connection.written.partition(b"\r\n\r\n")[2]


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def data():
    return np.arange(SIZE, dtype=np.uint8)


def test_slices_are_the_bytes_in_their_order(data):
    tensor = data[: SLICE_BYTES * 2].view(np.float32).reshape(2, -1).data
    pieces = list(slices([b"head", tensor, np.empty((0, 3)).data, b"", data.data]))
    assert b"".join(pieces) == b"head" + tensor.tobytes() + data.tobytes()
    assert [len(piece) for piece in pieces] == [4, *[SLICE_BYTES] * 2, *[SLICE_BYTES] * 3, 5]


def test_one_slice_a_turn_is_handed_over_and_the_answer_is_whole(connection, data):
    connection.answers.push(exchange(reply(data.data)))
    assert SLICE_BYTES < connection.in_turn < SLICE_BYTES + 1000
    assert [connection.turn() for _ in range(4)] == [SLICE_BYTES, SLICE_BYTES, 5, 0]
    assert body_of(connection) == data.tobytes()
    assert not connection.answers.outstanding
    assert connection.held == 0


def test_nothing_is_handed_over_while_the_client_takes_nothing(connection, data):
    connection.answers.push(exchange(reply(data.data)))
    connection.pause()
    assert [connection.turn() for _ in range(3)] == [0, 0, 0]
    connection.resume()
    assert [connection.turn() for _ in range(3)] == [SLICE_BYTES, SLICE_BYTES, 5]
    assert body_of(connection) == data.tobytes()


def test_an_answer_counts_as_a_whole_until_its_slow_client_has_it(connection, data):
    write, connection.write = connection.write, lambda piece: (write(piece), connection.pause())
    connection.answers.push(exchange(reply(data.data)))
    held = []
    while connection.flow.write_paused:
        held.append(connection.held)
        connection.resume()
        connection.turn()
    assert held == [0, SIZE, SIZE, SIZE, SIZE]
    assert connection.held == 0
    assert not connection.answers.outstanding


def test_an_answer_counts_no_more_when_its_client_has_caught_up(connection, data):
    write, slow = connection.write, [False, True, False, False, False]
    connection.write = lambda piece: (write(piece), slow.pop(0) and connection.pause())
    connection.answers.push(exchange(reply(data.data)))
    held = [connection.held]
    connection.resume()
    while connection.soon:
        connection.turn()
        held.append(connection.held)
    assert held == [SIZE, SIZE, SIZE, 0]


def test_the_next_answer_begins_behind_the_last_slice(connection, data):
    connection.answers.push(exchange(reply(data.data)))
    connection.answers.push(exchange(reply(b"next")))
    connection.answers.push(exchange(reply(b"last")))
    while connection.soon:
        connection.turn()
    whole = connection.written.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [len(each.partition(b"\r\n\r\n")[2]) for each in whole] == [SIZE, 4, 4]
    assert not connection.answers.outstanding


@pytest.mark.parametrize("asked_to", ["keep alive", "close", "drain"])
def test_a_connection_ends_behind_the_last_slice(connection, data, asked_to):
    last = exchange(reply(data.data))
    last.keep_alive = asked_to != "close"
    connection.answers.push(last)
    if asked_to == "drain":
        connection.answers.drain()
    connection.turn()
    assert not connection.hung_up
    connection.turn()
    connection.turn()
    assert body_of(connection) == data.tobytes()
    assert connection.hung_up is (asked_to != "keep alive")


def test_what_a_closing_connection_has_written_counts_until_its_client_has_it_or_is_gone(connection, data):
    last = exchange(reply(data.data))
    last.keep_alive = False
    connection.answers.push(last)
    connection.turn()
    connection.turn()
    connection.write = lambda _: connection.pause()  # the client is slow to take the last slice
    connection.turn()
    assert connection.hung_up
    assert connection.held >= SIZE
    connection.answers.forget(gone=True)
    assert connection.held == 0


@pytest.mark.parametrize("paused", [False, True])
def test_nothing_of_an_answer_stays_when_its_client_goes(connection, paused):
    data = np.zeros(SIZE, np.uint8)
    alive = weakref.ref(data)
    connection.answers.push(exchange(reply(data.data)))
    del data
    if paused:
        connection.turn()
        connection.pause()
        connection.turn()
    connection.answers.forget(gone=True)
    assert connection.held == 0
    connection.resume()
    assert connection.turn() == 0
    gc.collect()
    assert alive() is None


@pytest.mark.anyio
async def test_a_client_that_reads_nothing_has_one_slice_waiting_in_the_transport(door):
    body = bytes(32 << 20)
    async with serve(door) as server:
        server.handler.answer = reply(body)
        client = await server.connect(limit=1000)
        await client.send(request(b"1"))
        await eventually(lambda: server.connections)
        (connection,) = server.connections
        await eventually(lambda: connection.flow.write_paused)
        for _ in range(100):
            await asyncio.sleep(0)
            assert connection.transport.get_write_buffer_size() <= 2 * SLICE_BYTES
        assert (await client.response()).body == body
        assert server.handler.in_flight == 0
