"""What a door remembers of one inference request while it arrives: its target, its framing, its body so far."""

import re
from dataclasses import dataclass
from math import inf
from typing import Any
from urllib.parse import unquote

import httptools
import numpy as np

from app.api.exchange import Buffer, HeaderList, InferenceHandler, Reply, RequestHead, Ticket
from app.api.malformed import CHUNKED_UPGRADE, identified
from app.domain.errors import OutOfMemory

#: Bodies of refused requests up to this many bytes are read and forgotten, so that the connection can go on.
FORGETTABLE_BYTES = 65_536

#: The longest head that a connection remembers.
_MAX_REPEAT = 4096

_INFER = re.compile(rb"/v2/models/([^/?#]+)(?:/versions/([^/?#]+))?/infer(?:\?.*)?", re.DOTALL)


def infer_target(target: bytes) -> tuple[str, str | None] | None:
    """The percent-decoded model and version of a raw request target, None where it is no inference route."""
    match = _INFER.fullmatch(target)
    if match is None or not target.isascii():
        return None
    model, version = match.groups()
    return unquote(model.decode()), None if version is None else unquote(version.decode())


def readable(method: bytes, target: bytes) -> bool:
    """Whether a target that is no inference route can be looked up: a path, or a URL with one, or `OPTIONS *`."""
    try:
        # Its types know of no URL without a path, and compiled code relies on them.
        url: Any = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return False
    path: bytes | None = url.path
    return path is not None and (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS"))


def framing(headers: HeaderList) -> tuple[int | None, bool]:
    """How long the body is (None: chunked) and whether the client waits for `100 Continue` before it sends it."""
    length: int | None = 0
    waits = False
    for name, value in headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            length = None
        elif name == b"expect":
            waits = value.lower() == b"100-continue"
    return length, waits


def forgettable(length: int | None, waits: bool) -> bool:
    """Whether the body of a refused request is worth reading, to keep the connection.

    A client that waits for `100 Continue` may send its body all the same, or not: nobody knows what comes next.
    """
    return length is not None and length <= FORGETTABLE_BYTES and (length == 0 or not waits)


def head_size(target: bytes, headers: HeaderList) -> int:
    """About as many bytes as a head had on the wire."""
    return len(target) + sum([len(name) + len(value) + 4 for name, value in headers])


class Body:
    """Collects a request body: one piece stays as it is, several are copied once, into one buffer."""

    __slots__ = ("_data", "_length", "filled")

    def __init__(self, length: int | None) -> None:
        self._length = length
        self.filled = 0
        self._data: Buffer = b""

    @property
    def missing(self) -> int:
        """Bytes still to come of a body of known length; 0 for any other."""
        return 0 if self._length is None else self._length - self.filled

    def add(self, piece: Buffer) -> None:
        """Take the next piece; of a body of known length, at most what is missing. Raises `OutOfMemory`."""
        start, self.filled = self.filled, self.filled + len(piece)
        try:
            if start == 0:
                self._data = self._begin(piece)
            elif isinstance(self._data, bytearray):
                self._data += piece
            elif isinstance(self._data, memoryview):
                self._data[start : self.filled] = piece
        except MemoryError:
            raise OutOfMemory(f"no memory for a body of {self._length or self.filled} bytes") from None

    def _begin(self, piece: Buffer) -> Buffer:
        if self._length is None:
            return bytearray(piece)
        if len(piece) == self._length:
            return piece
        # Not a bytearray: that would touch every page at once, for bytes that may never come.
        buffer = np.empty(self._length, np.uint8).data
        buffer[: len(piece)] = piece
        return buffer

    def take(self) -> Buffer:
        """The complete body; this object forgets it."""
        data, self._data = self._data, b""
        return data


class Exchange:
    """A request on its way through a connection. Without a `ticket` it was not admitted and `reply` says why."""

    __slots__ = (
        "body", "complete", "counted", "head", "keep_alive", "old", "reply", "started", "target", "ticket", "waits",
    )  # fmt: skip

    body: Body  # unset where it came in one piece with its head

    def __init__(self, head: RequestHead, target: bytes, *, old: bool = False, waits: bool = False) -> None:
        self.head = head
        self.target = target
        self.ticket: Ticket | None = None
        self.counted = 0  # bytes of a chunked body that the ticket knows of
        self.reply: Reply | None = None
        self.complete = False  # the body is all here
        self.started = False  # the handler has it, and gives the ticket back
        self.keep_alive = True
        self.old = old  # HTTP/1.0
        self.waits = waits  # for 100 Continue

    @classmethod
    def arriving(
        cls, handler: InferenceHandler, target: tuple[str, str | None], parser: httptools.HttpRequestParser,
        url: bytes, headers: HeaderList, now: float,
    ) -> "Exchange":  # fmt: skip
        """A request whose head is complete, admitted or refused; `target` is what `url` names."""
        (length, waits), old = framing(headers), parser.get_http_version() == "1.0"
        head = RequestHead(*target, tuple(headers), now, length)
        exchange = cls(head, url, old=old, waits=waits and not old)
        exchange.keep_alive = parser.should_keep_alive()
        exchange.body = Body(length)
        if length is None and parser.should_upgrade():
            exchange.reply = identified(CHUNKED_UPGRADE, headers)
        else:
            try:
                exchange.ticket = handler.admit(head)
            except Exception as error:
                exchange.reply = handler.refuse(head, error)
        return exchange

    @classmethod
    def refused(cls, reply: Reply, now: float) -> "Exchange":
        """Stands for what is no request, and has its answer."""
        exchange = cls(RequestHead("", None, (), now, 0), b"")
        exchange.reply = reply
        return exchange

    def pour(self, data: bytes) -> bytes:
        """Take body bytes past the parser, which would copy them; return what follows the body."""
        missing = self.body.missing
        self.body.add(data if len(data) <= missing else data[:missing])
        return data[missing:]

    def count(self) -> None:
        """Account for the bytes of a chunked body: once per read, as a chunk may be one byte. Raises as `grow` does."""
        if self.ticket is not None and self.head.content_length is None:
            self.ticket.grow(self.body.filled - self.counted)
            self.counted = self.body.filled

    @property
    def deadline(self) -> float:
        """Until when the body may arrive, as far as the headers tell; infinite for a request that was refused."""
        return inf if self.ticket is None else self.ticket.deadline

    def give_back(self, code: str | None = None) -> None:
        """Give back the place of a request that will not be handled; `code` as for `Ticket.release`."""
        if self.ticket is not None:
            self.ticket.release(*([] if code is None else [code]))
            self.ticket = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """The head of the last request, to be known again by its bytes. `size` counts the body too.

    The same `exchange` stands for one request after the other: each has its answer before the next is read.
    """

    raw: bytes
    size: int
    exchange: Exchange

    @classmethod
    def of(cls, exchange: Exchange, data: bytes) -> "Repeat | None":
        """What to remember of a request that ended with `data`; None where `data` is not this request alone."""
        length = exchange.head.content_length
        if length is None or exchange.waits or exchange.old or not exchange.keep_alive:
            return None
        start = len(data) - length
        if start > _MAX_REPEAT or not data.startswith(b"POST ") or data.find(b"\r\n\r\n") != start - 4:
            return None
        return cls(data[:start], len(data), exchange)

    def again(self, now: float) -> Exchange:
        """The same request once more; to reset the exchange takes half of what it takes to make another."""
        exchange = self.exchange
        exchange.reply = None
        exchange.started = False
        last = exchange.head
        exchange.head = RequestHead(last.model, last.version, last.headers, now, last.content_length, last.read)
        return exchange
