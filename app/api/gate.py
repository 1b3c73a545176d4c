"""The ASGI middleware that asks for tokens before any route is looked up."""

import os

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Access, door_of
from app.api.asgi_door import send_reply
from app.api.errors import error_reply
from app.api.headers import MAX_REQUEST_ID
from app.domain.errors import ServingError


class AccessGate:
    """Refuses HTTP requests without the token that their path asks for."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "http":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            try:
                # The very path that the router will look up: without the prefix under which a server mounts us.
                self._access.check(door_of(get_route_path(scope)), given)
            except ServingError as error:
                reply = error_reply(error)
                sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
                request_id = sent or os.urandom(8).hex().encode()
                reply.fresh = ((b"x-request-id", request_id[:MAX_REQUEST_ID]),)
                await send_reply(reply, send)
                return
        await self._app(scope, receive, send)
