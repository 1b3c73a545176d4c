"""The ASGI door behind servers other than uvicorn: messages by hand."""

import asyncio
import json

import pytest

from app.api.asgi_door import asgi_infer
from tests.api.doors.harness import ScriptedHandler

pytestmark = pytest.mark.anyio


def scope(*headers, **changes):
    return {
        "type": "http",
        "method": "POST",
        "path": "/v2/models/m/infer",
        "raw_path": b"/v2/models/m/infer",
        "headers": list(headers),
        **changes,
    }


class Server:
    """Gives the messages in order, then nothing; remembers what is sent."""

    def __init__(self, *messages):
        self.messages = list(messages)
        self.sent = []

    async def receive(self):
        if not self.messages:
            await asyncio.Event().wait()
        message = self.messages.pop(0)
        if isinstance(message, asyncio.Event):
            await message.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message["body"] for message in self.sent[1:])


def part(body, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


async def test_names_are_lower_case_for_the_handler():
    handler, server = ScriptedHandler(), Server({"type": "http.request"})
    await asgi_infer(handler, scope((b"X-Thing", b"Value")), server.receive, server.send)
    assert handler.admitted[0].headers == ((b"x-thing", b"Value"),)
    assert server.status == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"raw_path": b"/v2/models/a%2Fb/versions/3/infer"},
        {"raw_path": b"/prefix/v2/models/a%2Fb/versions/3/infer", "root_path": "/prefix"},
        {"raw_path": None, "path_params": {"model": "a/b", "version": "3"}},
    ],
)
async def test_the_model_comes_from_the_raw_path_or_else_from_the_route(changes):
    handler, server = ScriptedHandler(), Server(part(b"", more=False))
    await asgi_infer(handler, scope(**changes), server.receive, server.send)
    assert (handler.admitted[0].model, handler.admitted[0].version) == ("a/b", "3")


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("length", [(b"content-length", b"4"), (b"transfer-encoding", b"chunked")])
@pytest.mark.parametrize("cut", [2, 4])
async def test_whatever_kind_of_bytes_the_server_gives_is_taken(kind, length, cut):
    parts = [kind(piece) for piece in (b"four"[:cut], b"four"[cut:])]
    handler, server = ScriptedHandler(), Server(part(parts[0]), part(parts[1], more=False))
    await asgi_infer(handler, scope(list(length)), server.receive, server.send)
    assert (server.status, server.body) == (200, b"four")


@pytest.mark.parametrize("sent", [b"four", b"sixsix"])
async def test_a_body_that_is_not_as_long_as_announced_is_refused(sent):
    handler, server = ScriptedHandler(), Server(part(sent[:2]), part(sent[2:], more=False))
    await asgi_infer(handler, scope((b"content-length", b"5")), server.receive, server.send)
    assert server.status == 400
    assert json.loads(server.body)["code"] == "invalid_request"
    assert (b"connection", b"close") in server.sent[0]["headers"]
    assert handler.in_flight == 0


async def test_a_client_that_goes_before_its_body_is_read_is_not_answered():
    handler, server = ScriptedHandler(), Server(part(b"ab"), {"type": "http.disconnect"})
    await asgi_infer(handler, scope((b"content-length", b"5")), server.receive, server.send)
    assert server.sent == []
    assert not handler.started
    assert handler.in_flight == 0


async def test_a_client_that_goes_while_it_is_served_is_not_answered():
    leaves = asyncio.Event()
    handler, server = ScriptedHandler(), Server(part(b"", more=False), leaves)
    path = scope(raw_path=b"/v2/models/slow/infer")
    door = asyncio.create_task(asgi_infer(handler, path, server.receive, server.send))
    await handler.until(lambda: handler.started)
    leaves.set()
    await door
    assert server.sent == []
    assert len(handler.cancelled) == 1
    assert handler.in_flight == 0


@pytest.mark.parametrize("model", ["slow", "m"])
async def test_cancelling_the_door_withdraws_the_request(model):
    handler = ScriptedHandler()
    server = Server(part(b"", more=False)) if model == "slow" else Server(part(b""))
    path = scope(raw_path=f"/v2/models/{model}/infer".encode())
    door = asyncio.create_task(asgi_infer(handler, path, server.receive, server.send))
    await handler.until(lambda: handler.started if model == "slow" else handler.admitted)
    door.cancel()
    with pytest.raises(asyncio.CancelledError):
        await door
    assert server.sent == []
    assert handler.in_flight == 0
    assert len(handler.cancelled) == (model == "slow")


async def test_nothing_goes_on_after_the_answer():
    handler, server = ScriptedHandler(), Server(part(b"", more=False))
    before = asyncio.all_tasks()
    await asgi_infer(handler, scope(), server.receive, server.send)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_refusal_reads_no_body():
    handler, server = ScriptedHandler(), Server()
    path = scope((b"content-length", b"5"), raw_path=b"/v2/models/missing/infer")
    await asgi_infer(handler, path, server.receive, server.send)
    assert server.status == 404
