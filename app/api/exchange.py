"""What both doors hand to the inference handler and get back: a head, a body, a reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Buffer = bytes | bytearray | memoryview

#: Header names in lower case, in the order of arrival.
HeaderList = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True, init=False)
class RequestHead:
    """An inference request before its body: complete headers, `received_at` in monotonic seconds.

    `model` and `version` are percent-decoded path segments; `content_length` is None for a chunked body. `read` is the
    handler's: what it made of the headers, which a door hands on to the next request with the very same ones; its own
    too are `admitted`, and the `request_id` of one that is refused.
    """

    model: str
    version: str | None
    headers: HeaderList
    received_at: float
    content_length: int | None
    read: Any
    admitted: bool
    request_id: bytes | None

    # By hand, as for all that is made for each request: a generated one is not compiled.
    def __init__(
        self,
        model: str,
        version: str | None,
        headers: HeaderList,
        received_at: float,
        content_length: int | None = None,
        read: Any = None,
    ) -> None:
        self.model = model
        self.version = version
        self.headers = headers
        self.received_at = received_at
        self.content_length = content_length
        self.read = read
        self.admitted = False
        self.request_id = None


@dataclass(slots=True, init=False)
class Reply:
    """A complete answer. `body` is one buffer or several that are sent one after the other, without a join.

    `headers`, and the names of those that are `fresh` in each reply, are the same for many, so a door may cache what it
    makes of them; `values` are this reply's own, one for each fresh name. None of them is Content-Length: the doors add
    it. `Connection: close` among the headers is obeyed.
    """

    status: int
    headers: HeaderList
    body: list[Buffer]
    fresh: tuple[bytes, ...]
    values: tuple[bytes, ...]

    def __init__(
        self,
        status: int,
        headers: HeaderList,
        body: list[Buffer],
        fresh: tuple[bytes, ...] = (),
        values: tuple[bytes, ...] = (),
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.fresh = fresh
        self.values = values

    @property
    def nbytes(self) -> int:
        """Length of the body."""
        return sum([buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in self.body])


class Ticket(Protocol):
    """A request that was admitted: it holds its place in the in-flight counts until `release`.

    `deadline` is as far as the headers tell, in monotonic seconds, infinite where there is none.
    """

    deadline: float

    def grow(self, nbytes: int) -> None:
        """Account for body bytes of a chunked request. Raises `PayloadTooLarge` or `TooManyRequests`."""

    def release(self, code: str = "unsaid") -> None:
        """Give the place back. Idempotent; `handle` calls it, a door calls it when there is no body to handle.

        `code` is that of the error with which the door ended it; left out, the client went away, or `grow` raised.
        """


class InferenceHandler(Protocol):
    """The one story behind both doors. Everything here runs on the event loop."""

    def admit(self, head: RequestHead) -> Ticket:
        """Refuse what the headers suffice to refuse (token, size, caps, model, deadline). Raises `ServingError`."""

    async def handle(self, ticket: Ticket, body: Buffer) -> Reply:
        """Answer an admitted request; every failure becomes a reply. Cancelling it withdraws the request."""

    def hold(self, nbytes: int) -> None:
        """Count bytes of answers that clients do not take; negative when they are gone."""

    def refuse(self, head: RequestHead, error: Exception) -> Reply:
        """The reply for an error raised by `admit` or `grow`."""
