"""A scripted handler, a real uvicorn server around it for either door, and a client that speaks bytes."""

import asyncio
import contextlib
import json
import socket
import struct
from math import inf
from typing import Any, NamedTuple

import anyio
import uvicorn

from app.api.asgi_door import asgi_infer
from app.api.connection import infer_target
from app.api.errors import error_reply
from app.api.exchange import Reply
from app.api.fastpath import FastPathProtocol
from app.api.malformed import identified
from app.domain.errors import ModelNotFound, PayloadTooLarge

TIMEOUT = b"x-request-timeout-ms"

HEADERS = ((b"content-type", b"application/octet-stream"),)

PROTOCOLS: dict[str, Any] = {"fast": FastPathProtocol, "asgi": FastPathProtocol, "plain": "httptools"}


class ScriptedTicket:
    def __init__(self, handler, head):
        self.handler = handler
        self.head = head
        self.nbytes = head.content_length or 0
        self.deadline = next((head.received_at + int(v) / 1e3 for k, v in head.headers if k == TIMEOUT), inf)
        self.released = False
        self.code = None

    def grow(self, nbytes):
        self.nbytes += nbytes
        if self.nbytes > self.handler.limit:
            raise PayloadTooLarge(f"more than {self.handler.limit} bytes")

    def release(self, code=None):
        if not self.released:
            self.released = True
            self.code = code
            self.handler.in_flight -= 1
            self.handler.changed()


class ScriptedHandler:
    """Echoes bodies. Model `slow` waits for `gate`, `missing` is not there, `broken` breaks the contract."""

    def __init__(self, limit=64 << 20):
        self.limit = limit
        self.gate = asyncio.Event()
        self.admitted = []
        self.tickets = []
        self.started = []
        self.cancelled = []
        self.types = []
        self.in_flight = 0
        self.held = 0
        self.answer = None
        self._waiters = set()

    def changed(self):
        for waiter in self._waiters:
            waiter.set()

    async def until(self, condition):
        """Wait for a condition on this handler, looking whenever something changed."""
        event = asyncio.Event()
        self._waiters.add(event)
        with anyio.fail_after(60):
            while not condition():
                await event.wait()
                event.clear()
        self._waiters.discard(event)

    def admit(self, head):
        if head.model == "missing":
            raise ModelNotFound("no model 'missing'")
        if head.content_length is not None and head.content_length > self.limit:
            raise PayloadTooLarge(f"more than {self.limit} bytes")
        self.admitted.append(head)
        self.in_flight += 1
        self.changed()
        self.tickets.append(ScriptedTicket(self, head))
        return self.tickets[-1]

    async def handle(self, ticket, body):
        if ticket.head.model == "broken":
            raise RuntimeError("the handler is broken")
        try:
            self.started.append(ticket.head)
            self.types.append(type(body))
            self.changed()
            if ticket.head.model == "slow":
                await self.gate.wait()
            return self.answer or Reply(200, HEADERS, [body], (b"x-model",), (ticket.head.model.encode(),))
        except asyncio.CancelledError:
            self.cancelled.append(ticket.head)
            raise
        finally:
            ticket.release()

    def hold(self, nbytes):
        self.held += nbytes
        self.changed()

    def refuse(self, head, error):
        if isinstance(error, RuntimeError):
            return Reply(500, ((b"content-type", b"application/json"),), [b'{"error":"internal","code":"internal"}'])
        return identified(error_reply(error), head.headers)


async def eventually(condition):
    """Let the event loop turn until the condition holds."""
    with anyio.fail_after(60):
        while not condition():
            await asyncio.sleep(0)


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection, bytes in and out."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    async def send(self, data):
        self.writer.write(data)
        with anyio.fail_after(60):
            await self.writer.drain()

    async def response(self):
        """The next response, bodies without Content-Length excluded."""
        with anyio.fail_after(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = head.split("\r\n")[:-2]
            headers = dict(each.split(": ", 1) for each in lines)
            status = int(line.split()[1])
            body = b"" if status == 100 else await self.reader.readexactly(int(headers["content-length"]))
        return Response(status, headers, body)

    async def ask(self, data):
        await self.send(data)
        return await self.response()

    async def closed(self):
        """Whether the server closes the connection and sends nothing before it."""
        with anyio.fail_after(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def reset(self):
        """Go away without a goodbye."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def fails(client, status, code):
    """Expect an error in the common form, then the end of the connection."""
    response = await client.response()
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["connection"] == "close"
    assert response.headers["x-request-id"]
    body = json.loads(response.body)
    assert set(body) == {"error", "code"}
    assert body["code"] == code
    assert await client.closed()


class Running:
    """A server in the event loop of the test."""

    def __init__(self, handler, uvicorn_server):
        self.handler = handler
        self.uvicorn = uvicorn_server
        self.port = uvicorn_server.servers[0].sockets[0].getsockname()[1]
        self._clients = []

    @property
    def connections(self):
        return self.uvicorn.server_state.connections

    async def connect(self, **options):
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self._clients.append(client)
        return client

    async def stop(self):
        for client in self._clients:
            await client.close()
        for listener in self.uvicorn.servers:
            listener.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await eventually(lambda: not self.connections and not self.uvicorn.server_state.tasks)
        await self.uvicorn.lifespan.shutdown()


def application(handler, state):
    """`asgi_infer` on the inference routes; an echo that says so everywhere else."""

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            scope["state"].update(state)
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["method"] == "POST" and infer_target(scope["raw_path"]):
            await asgi_infer(handler, scope, receive, send)
        else:
            await echo(scope, receive, send)

    async def echo(scope, receive, send):
        if scope["path"] == "/slow":
            await handler.gate.wait()
        body, more = b"", scope["path"] != "/unread"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        body = b"asgi %b %b" % (scope["path"].encode(), body)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


@contextlib.asynccontextmanager
async def serve(door="fast", handler=None, state=None, **options):
    """A server whose inference requests take the named door."""
    handler = handler or ScriptedHandler()
    state = {**(state or {})}
    if door == "fast":
        state["inference_handler"] = handler
    options = {
        "log_config": None,
        "access_log": False,
        "ws": "none",
        "lifespan": "on",
        "timeout_keep_alive": 75,
        **options,
    }
    config = uvicorn.Config(application(handler, state), port=0, http=PROTOCOLS[door], **options)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    await server.on_tick(0)
    running = Running(handler, server)
    try:
        yield running
    finally:
        await running.stop()


def request(body=b"", model="m", *headers, version=None, target=None, length=None, http="1.1"):
    """The bytes of an inference request."""
    path = f"/v2/models/{model}/infer" if version is None else f"/v2/models/{model}/versions/{version}/infer"
    lines = [f"POST {target or path} HTTP/{http}", "Host: test", *headers]
    if not any(each.lower().startswith("transfer-encoding") for each in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*pieces, model="m", headers=()):
    """The bytes of an inference request in chunks."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return request(chunks, model, "Transfer-Encoding: chunked", *headers)
