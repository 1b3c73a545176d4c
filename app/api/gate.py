"""The ASGI middleware that asks for tokens before any route is looked up."""

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Access, door_of
from app.api.errors import error_reply
from app.api.exchange import Reply
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
                await send_reply(error_reply(error), send)
                return
        await self._app(scope, receive, send)


async def send_reply(reply: Reply, send: Send) -> None:
    """Send a complete reply through ASGI."""
    body = b"".join(reply.body)
    headers = [*reply.headers, *reply.fresh, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
