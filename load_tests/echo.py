"""The yardstick: a bare ASGI application that reads the body and answers always the same bytes."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

ANSWER = Path(os.environ["ECHO_ANSWER"]).read_bytes() if "ECHO_ANSWER" in os.environ else b""

START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", str(len(ANSWER)).encode()),
    ],
}
BODY = {"type": "http.response.body", "body": ANSWER}

Message = MutableMapping[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Read the whole body, answer."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(BODY)
