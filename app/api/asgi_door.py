"""The ASGI door: the same inference handler behind any ASGI server."""

import asyncio
from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any

from starlette.types import Receive, Scope, Send

from app.api.connection import Body, forgettable, framing, infer_target
from app.api.exchange import Buffer, HeaderList, InferenceHandler, Reply, RequestHead, Ticket
from app.api.malformed import LATE
from app.api.slices import SLICE_BYTES, slices
from app.domain.errors import InvalidRequest, OutOfMemory


class _Gone(Exception):
    """The client closed the connection."""


async def asgi_infer(handler: InferenceHandler, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer an inference request that came through ASGI; a client that goes away cancels it.

    `scope` is that of an HTTP request to an inference route, with its body unread.
    """
    headers, length, waits = _framed(scope)
    head = RequestHead(*_target(scope), headers, monotonic(), length)
    try:
        ticket = handler.admit(head)
    except Exception as error:
        await send_reply(handler.refuse(head, error), send, ends=not forgettable(length, waits))
        return
    try:
        async with asyncio.timeout(None if ticket.deadline == inf else ticket.deadline - monotonic()):
            body = await _read(ticket, length, receive)
        reply = await _handle(handler, ticket, body, receive)
    except _Gone:
        return
    except TimeoutError:
        ticket.release(LATE.code)
        await send_reply(handler.refuse(head, LATE), send, ends=True)
        return
    except Exception as error:
        if isinstance(error, InvalidRequest | OutOfMemory):
            ticket.release(error.code)
        await send_reply(handler.refuse(head, error), send, ends=True)
        return
    finally:
        ticket.release()
    nbytes = reply.nbytes
    handler.hold(nbytes)  # until the client has it: `send` waits for slow ones
    try:
        await send_reply(reply, send)
    finally:
        handler.hold(-nbytes)


def head_of(scope: Scope) -> RequestHead | None:
    """The head of an inference request before it was routed; None for any other."""
    target = _raw_target(scope)
    if target is None:
        return None
    headers, length, _ = _framed(scope)
    return RequestHead(*target, headers, monotonic(), length)


def _framed(scope: Scope) -> tuple[HeaderList, int | None, bool]:
    """Headers with names in lower case, and how the body comes (`framing`)."""
    headers = tuple([(name.lower(), value) for name, value in scope["headers"]])
    return headers, *framing(headers)


def _target(scope: Scope) -> tuple[str, str | None]:
    """Model and version as the fast door reads them: from the raw path, where the server passes it on."""
    found = _raw_target(scope)
    if found is not None:
        return found
    parameters: Mapping[str, Any] = scope.get("path_params", {})
    return parameters["model"], parameters.get("version")


def _raw_target(scope: Scope) -> tuple[str, str | None] | None:
    raw: bytes = scope.get("raw_path") or b""
    return infer_target(raw.removeprefix(scope.get("root_path", "").encode()))


async def _read(ticket: Ticket, length: int | None, receive: Receive) -> Buffer:
    body = Body(length)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        piece = message.get("body", b"")
        if length is None:
            ticket.grow(len(piece))
        elif len(piece) > body.missing:
            raise InvalidRequest(f"the body is longer than its Content-Length of {length} bytes")
        body.add(piece)
        if not message.get("more_body", False):
            break
    if body.missing:
        raise InvalidRequest(f"the body is shorter than its Content-Length of {length} bytes")
    return body.take()


async def _handle(handler: InferenceHandler, ticket: Ticket, body: Buffer, receive: Receive) -> Reply:
    """Run the handler beside a task that waits for the client to go away: asking now and then would miss it."""
    answer = asyncio.ensure_future(handler.handle(ticket, body))
    del body
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _Gone
        return answer.result()
    finally:
        gone.cancel()
        if answer.cancel():
            await asyncio.wait((answer,))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_reply(reply: Reply, send: Send, *, ends: bool = False) -> None:
    """Send a complete reply through ASGI; `ends` asks the server to close the connection after it."""
    fresh = zip(reply.fresh, reply.values, strict=True)
    headers = [*reply.headers, *fresh, (b"content-length", b"%d" % reply.nbytes)]
    if ends:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    for piece in slices(reply.body):
        await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
        if len(piece) == SLICE_BYTES:
            await asyncio.sleep(0)  # servers make us wait for slow clients only
    await send({"type": "http.response.body", "body": b"", "more_body": False})
