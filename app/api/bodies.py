"""The small JSON bodies of the control routes."""

from typing import Any

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect

from app.api.codec.depth import check_depth
from app.domain.errors import Cancelled, InvalidRequest, PayloadTooLarge, UnsupportedEncoding

#: Most bytes of such a body.
MAX_BYTES = 1_048_576


async def read_bytes(request: Request) -> bytes:
    """The body as it is. Raises `PayloadTooLarge`, or `Cancelled` when the client went away."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BYTES:
                raise PayloadTooLarge(f"the body has more than the {MAX_BYTES} bytes that this route takes")
    except ClientDisconnect:
        raise Cancelled("the client went away") from None
    return bytes(body)


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object, an empty one for an empty body.

    Content-Type is not looked at: curl sends that of a form, and some clients of this protocol send none. Raises
    `InvalidRequest`, `PayloadTooLarge`, `UnsupportedEncoding`, or `Cancelled` when the client went away.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedEncoding("only inference requests may be compressed")
    body = await read_bytes(request)
    try:
        value = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not a {type(value).__name__}")
    check_depth(value, (), 1)
    return {name: _whole(each) for name, each in value.items()}


def _whole(value: Any) -> Any:
    """2.0 is a whole number to JSON Schema, and some languages write 2 so."""
    return int(value) if isinstance(value, float) and abs(value) <= 2**53 and value.is_integer() else value


def documented(schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    """The OpenAPI entry of a route whose body is read with `read_object`."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}
