"""The ASGI middleware that asks for tokens before any route is looked up, and gives every answer a request id."""

from time import monotonic

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access import Access, door_of
from app.api.asgi_door import head_of, send_reply
from app.api.errors import error_reply
from app.api.exchange import InferenceHandler, Reply
from app.api.headers import request_id_of
from app.api.journal import Journal
from app.domain.errors import ServingError


class AccessGate:
    """Refuses HTTP requests without the token that their path asks for, and says so in the log.

    The request id is echoed or made, told in `scope["state"]["request_id"]`, and added where an answer has none.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        handler: InferenceHandler | None = None,
        journal: Journal | None = None,
        *,
        shared_memory: bool = True,
    ) -> None:
        """Without a `handler` there are no inference routes here, and without a `journal` refusals are told nobody."""
        self._app = app
        self._access = access
        self._handler = handler
        self._journal = journal
        self._shared_memory = shared_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "http":
            # Tuples, as every other door has them: ASGI leaves it to the server what the pairs are.
            scope["headers"] = [(name, value) for name, value in scope["headers"]]
            request_id = request_id_of(scope["headers"])
            scope.setdefault("state", {})["request_id"] = request_id.decode("latin-1")
            given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            # The very path that the router will look up: without the prefix under which a server mounts us.
            path = get_route_path(scope)
            try:
                self._access.check(door_of(path, scope["method"], shared_memory=self._shared_memory), given)
            except ServingError as error:
                await send_reply(self._refusal(scope, path, request_id, error), send)
                return
            send = _identifying(send, request_id)
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, path: str, request_id: bytes, error: ServingError) -> Reply:
        head = head_of(scope) if scope["method"] == "POST" else None
        if head is not None and self._handler is not None:
            return self._handler.refuse(head, error)  # as the other door would have
        if self._journal is not None:
            self._journal.barred(scope["method"], path, request_id, error.code, monotonic(), scope["headers"])
        reply = error_reply(error)
        reply.fresh, reply.values = (b"x-request-id",), (request_id,)
        return reply


def _identifying(send: Send, request_id: bytes) -> Send:
    async def identified(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not any(name == b"x-request-id" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"x-request-id", request_id)]}
        await send(message)

    return identified
