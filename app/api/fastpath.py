"""The fast door: a uvicorn HTTP protocol that answers inference requests itself and leaves the rest to ASGI."""

import asyncio
import logging
from math import inf
from time import monotonic
from typing import Any, NoReturn

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.api.answers import Answers
from app.api.connection import Exchange, Repeat, forgettable, framing, head_size, infer_target, readable
from app.api.exchange import InferenceHandler, Reply
from app.api.malformed import BROKEN, CHUNKED_UPGRADE, LATE, MALFORMED, MAX_HEAD_BYTES, TOO_LARGE, TOO_SLOW, identified
from app.api.patience import Patience
from app.api.replay import replay
from app.domain.errors import ServingError

logger = logging.getLogger(__name__)

BETWEEN, HEAD, BODY = range(3)  # where the parser is


class _Enough(Exception):
    """This connection reads no further request."""


class FastPathProtocol(HttpToolsProtocol):
    """One connection. Answers leave in the order of the requests, whichever door they go through. Event loop only.

    The lifespan state gives the `inference_handler` (without one, every request goes to ASGI) and may give a
    `read_timeout`: the seconds a client has to send a head after its first byte, or the next bytes of a body.
    A client that closes its sending side is gone: TCP does not tell it from one that closed both.
    """

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._handler: InferenceHandler | None = app_state.get("inference_handler")
        self._stage = BETWEEN
        self._receiving: Exchange | None = None  # the inference request whose body arrives
        self._finished: Exchange | None = None  # that whose body arrived last, until the next begins
        self._repeat: Repeat | None = None
        self._deaf = False  # no further request is read
        self._cut = False  # nor the rest of the last one
        self._overhead = 0  # bytes in a row that were not body
        self._unread = 0  # bytes of an ASGI request's body that the parser will not see
        self._now = 0.0  # of the data being parsed

    # What the transport and the server call

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn narrows it
        super().connection_made(transport)
        self._answers = Answers(self, self._handler, super()._start_asgi_task, self._hang_up)
        seconds = self.app_state.get("read_timeout", 30.0)
        self._patience = Patience(self, self._answers, seconds, self._expected, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._deaf = True
        self._answers.forget(gone=True)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._now = monotonic()
        repeat = self._repeat
        if repeat is not None and (len(data) != repeat.size or not data.startswith(repeat.raw)):
            repeat = None
        if repeat is not None and self._stage == BETWEEN and self._answers.free and not self._deaf:
            # A head that is, byte for byte, that of the request before: no parser needs to see it.
            self._answers.serve(repeat.again(self._now), data[len(repeat.raw) :])
        elif not self._deaf:
            try:
                self._read(data)
            except ServingError as error:
                self._break(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answers.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._answers.advance()

    def shutdown(self) -> None:
        self._answers.drain()

    def _read(self, data: bytes) -> None:
        if self._stage == BODY and not (data := self._read_body(data)):
            return
        alone = self._stage == BETWEEN
        self._parse(data)
        if self._deaf:
            return
        if self._stage != BETWEEN and self._overhead > MAX_HEAD_BYTES:
            self._fail(TOO_LARGE)
        elif self._receiving is not None:
            self._count(self._receiving)
            if (self._expected() or inf) < inf:
                self._patience.hurry()
        elif alone and self._finished is not None:
            self._repeat = Repeat.of(self._finished, data)

    def _parse(self, data: bytes) -> None:
        # Offers come by the thousand, if a client likes, and no limit on recursion holds in compiled code.
        while data:
            self._overhead = len(data) if self._stage == BETWEEN else self._overhead + len(data)
            data = self._feed(data)
            if data and self._stage == BODY:
                data = self._read_body(data)

    def _feed(self, data: bytes) -> bytes:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._receiving is not None or self._finished is not None or not self._should_upgrade():
                return data[upgrade.args[0] :]  # an offer, as some clients make of h2c: the request stands
            self.handle_websocket_upgrade()
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Enough):
                self._break(error.__context__)
        except httptools.HttpParserError:
            if not self._deaf:
                self._fail(MALFORMED)
        return b""

    def _read_body(self, data: bytes) -> bytes:
        """Take the body bytes that the parser is not to see; return what is left for it."""
        exchange = self._receiving
        if exchange is not None and exchange.head.content_length is not None:
            self._patience.took(len(data), self._now)
            data = exchange.pour(data)
            if not exchange.body.missing:
                # The old parser still waits for this body.
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self._complete(exchange)
        elif self._unread:
            piece, data = data[: self._unread], data[self._unread :]
            self._unread -= len(piece)
            self.on_body(piece)
            self.on_message_complete()
        return data

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._deaf:
            raise _Enough
        self._stage, self._finished = HEAD, None
        self._patience.since = self._now
        self.url, self.headers = b"", []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage == HEAD:  # trailers say nothing that we need
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._overhead > MAX_HEAD_BYTES and head_size(self.url, self.headers) > MAX_HEAD_BYTES:
            self._refuse_head(TOO_LARGE)
        self._stage, self._overhead = BODY, 0
        method = self.parser.get_method()
        target = infer_target(self.url) if method == b"POST" else None
        if self._handler is None or target is None:
            self._pass_on(method)
        else:
            self._take(self._handler, target)

    def _take(self, handler: InferenceHandler, target: tuple[str, str | None]) -> None:
        exchange = Exchange.arriving(handler, target, self.parser, self.url, self.headers, self._now)
        self._receiving = exchange
        if exchange.reply is not None and not forgettable(exchange.head.content_length, exchange.waits):
            self._cut_off(exchange)
        self._answers.push(exchange)
        if self._deaf:
            raise _Enough

    def _pass_on(self, method: bytes) -> None:
        if method == b"CONNECT" or not readable(method, self.url):
            self._refuse_head(MALFORMED)
        if self.parser.should_upgrade() and not self._should_upgrade():
            length, _ = framing(self.headers)
            if length is None:
                self._refuse_head(CHUNKED_UPGRADE)
            self._unread = length or 0
        replay(self, self.url, self.headers)

    def _refuse_head(self, reply: Reply) -> NoReturn:
        self._stage = HEAD
        self._fail(reply)
        raise _Enough

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answers.push((cycle, app))

    def on_body(self, body: bytes) -> None:
        self._patience.took(len(body), self._now)
        self._overhead = 0
        if self._receiving is not None:
            self._receiving.body.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        exchange = self._receiving
        if exchange is None:
            if not self._unread:
                self._stage = BETWEEN
                super().on_message_complete()
        elif not exchange.body.missing:  # an offer to upgrade ends the message early
            self._complete(exchange)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._answers.asgi_done()

    def _complete(self, exchange: Exchange) -> None:
        self._receiving, self._finished, self._stage = None, exchange, BETWEEN
        self._count(exchange)
        exchange.complete = True
        self._deaf = self._deaf or not exchange.keep_alive
        self._answers.settle(exchange)

    def _count(self, exchange: Exchange) -> None:
        try:
            exchange.count()
        except Exception as error:
            self._refuse(exchange, self._answers.refusal(exchange, error))

    def _refuse(self, exchange: Exchange, reply: Reply, code: str | None = None) -> None:
        """Answer a request that was admitted, but will not be handled."""
        exchange.give_back(code)
        exchange.reply = reply
        if exchange is self._receiving:
            self._cut_off(exchange)
        self._answers.settle(exchange)

    def _cut_off(self, exchange: Exchange) -> None:
        """Read no more of this request, nor any further one."""
        exchange.keep_alive = False
        self._receiving, self._stage = None, BETWEEN
        self._deaf = self._cut = True

    def _expected(self) -> float | None:
        """The deadline of the request that arrives, None between requests."""
        return None if self._stage == BETWEEN else inf if self._receiving is None else self._receiving.deadline

    def _give_up(self) -> None:
        """The rest of the request that arrives did not come in time."""
        if (exchange := self._receiving) is not None and exchange.deadline <= monotonic():
            exchange.give_back(LATE.code)
            self._fail(self._answers.refusal(exchange, LATE))
        else:
            self._fail(TOO_SLOW)

    def _fail(self, reply: Reply) -> None:
        """Answer, in its turn, a request that cannot be read to its end; the connection ends with it."""
        if not reply.fresh:
            reply = identified(reply, () if self._stage == BETWEEN else self.headers)
        exchange = self._receiving
        if exchange is None and self._stage == BODY and not self._answers.withdraw(self.cycle):
            self.transport.close()  # ASGI has begun its answer
        elif exchange is None:
            exchange = Exchange.refused(reply, self._now)
            self._cut_off(exchange)
            self._answers.push(exchange)
        elif exchange.reply is None:
            self._refuse(exchange, reply)
        elif self._answers.outstanding:
            self._cut_off(exchange)
        else:
            self.transport.close()  # it was refused before, and has its answer

    def _break(self, bug: BaseException | None) -> None:
        """Our own code failed, and left nothing to rely on: end the connection, with an answer where none is owed."""
        if isinstance(bug, ServingError) and (exchange := self._receiving) is not None:  # no memory for its body
            self._refuse(exchange, self._answers.refusal(exchange, bug), bug.code)
            return
        logger.error("a connection broke", exc_info=bug)
        if self._receiving is not None:
            self._receiving.give_back()
        if self._answers.outstanding or self._deaf:
            self.transport.close()
        else:
            self._receiving, self._stage = None, BETWEEN
            self._fail(BROKEN)

    def _hang_up(self) -> None:
        self._deaf = True
        self._answers.forget()
        if not self._cut and self._stage == BETWEEN:
            self.transport.close()
            return
        self._cut, self._stage, self._receiving = True, BETWEEN, None
        self._patience.linger()
