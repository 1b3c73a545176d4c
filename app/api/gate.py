"""The ASGI middleware that asks for tokens before any route is looked up, and gives every answer a request id."""

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access import Access, door_of
from app.api.asgi_door import send_reply
from app.api.errors import error_reply
from app.api.headers import request_id_of
from app.domain.errors import ServingError


class AccessGate:
    """Refuses HTTP requests without the token that their path asks for.

    The request id is echoed or made, told in `scope["state"]["request_id"]`, and added where an answer has none.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "http":
            request_id = request_id_of(scope["headers"])
            scope.setdefault("state", {})["request_id"] = request_id.decode("latin-1")
            given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            try:
                # The very path that the router will look up: without the prefix under which a server mounts us.
                self._access.check(door_of(get_route_path(scope), scope["method"]), given)
            except ServingError as error:
                reply = error_reply(error)
                reply.fresh, reply.values = (b"x-request-id",), (request_id,)
                await send_reply(reply, send)
                return
            send = _identifying(send, request_id)
        await self._app(scope, receive, send)


def _identifying(send: Send, request_id: bytes) -> Send:
    async def identified(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(name == b"x-request-id" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"x-request-id", request_id)]}
        await send(message)

    return identified
