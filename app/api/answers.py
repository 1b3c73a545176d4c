"""The answers that one connection owes: in which order they leave, and as which bytes."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.connection import Exchange
from app.api.exchange import Buffer, HeaderList, InferenceHandler, Reply
from app.api.slices import LargeAnswer
from app.api.story import Story
from app.api.turns import Turns

#: Pipelined requests that may wait behind the one being answered before the connection stops reading.
MAX_WAITING = 16
#: Answers up to this size are joined into one buffer; larger ones are written without a copy, in slices.
JOIN_BYTES = 65_536

AsgiRequest = tuple[RequestResponseCycle, ASGI3Application]

# The end of a head, by whether a client is told that the connection ends with it, or one of HTTP/1.0 that it does not.
_LAST_LINES = {
    (False, False): b"\r\n",
    (False, True): b"connection: keep-alive\r\n\r\n",
    (True, False): b"connection: close\r\n\r\n",
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Answers:
    """One answer at a time, in the order of the requests, whichever door they go through. Event loop only.

    `hang_up` is called after an answer that ends the connection; `since` is when the last answer, or a part of it, was
    written; `turns` are those of all connections.
    """

    def __init__(
        self,
        connection: HttpToolsProtocol,
        handler: InferenceHandler | None,
        start_asgi: Callable[[RequestResponseCycle, ASGI3Application], None],
        hang_up: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._flow = connection.flow
        self._state = connection.server_state
        self._handler = handler
        self._start_asgi = start_asgi
        self._hang_up = hang_up
        self._waiting: deque[Exchange | AsgiRequest] = deque()
        self._story: Story[Reply] | None = None
        self._headers: HeaderList | None = None  # what `_form` was made of, as are the next three
        self._fresh: tuple[bytes, ...] = ()
        self._defaults: HeaderList | None = None
        self._status = 0
        self._form = b""
        self._says_close = False
        self._held = 0  # bytes of the last answer that the client was slow to take
        self._advancing = False
        self.turns = Turns.shared(connection.app_state, connection.loop)
        self.current: Exchange | RequestResponseCycle | LargeAnswer | None = None
        self.since = monotonic()
        self.draining = False

    @property
    def outstanding(self) -> bool:
        """Whether a request is being answered, or waits for it."""
        return self.current is not None or bool(self._waiting)

    @property
    def free(self) -> bool:
        """Whether a request that came now would be answered at once."""
        return self.current is None and not self._flow.write_paused

    def push(self, item: Exchange | AsgiRequest) -> None:
        """Put a request at the end of the line."""
        if self.free:
            self._begin(item)
        else:
            self._waiting.append(item)
            if len(self._waiting) >= MAX_WAITING:
                self._flow.pause_reading()

    def pause(self) -> None:
        """The client is slow to take what was written."""
        self._flow.pause_reading()
        self.since = monotonic()

    def advance(self) -> None:
        """Go on with those in line, as far as the client takes its answers."""
        if self._advancing:
            return  # an answer that needed no waiting came from within: the loop below goes on
        self._advancing = True
        if isinstance(self.current, LargeAnswer):
            self.turns.ask(self._go_on, self.current)
        elif self._held and not self._flow.write_paused:
            self._hold(0)
        while self._waiting and self.free and not self._transport.is_closing():
            self._begin(self._waiting.popleft())
        self._advancing = False
        if len(self._waiting) < MAX_WAITING and not self._flow.write_paused:
            self._flow.resume_reading()

    def settle(self, exchange: Exchange) -> None:
        """Go on with a request that is complete, or refused, since it was pushed."""
        if exchange is self.current:
            self._begin(exchange)

    def asgi_done(self) -> None:
        """The ASGI application has answered the current request."""
        self.current = None
        if self._transport.is_closing():
            return
        self.since = monotonic()
        self.advance()

    def drain(self) -> None:
        """Close the connection after the last answer that it owes."""
        self.draining = True
        if not self.outstanding:
            self._transport.close()
        elif isinstance(self.current, RequestResponseCycle) and not self._waiting:
            self.current.keep_alive = False

    def withdraw(self, cycle: RequestResponseCycle) -> bool:
        """Forget the request to ASGI that came last; false if its answer has begun."""
        cycle.disconnected = True
        cycle.message_event.set()
        if self._waiting:
            self._waiting.pop()
        elif cycle is self.current and not cycle.response_started:
            self.current = None
        else:
            return False
        return True

    def forget(self, *, gone: bool = False) -> None:
        """Nobody waits for more answers: cancel what runs, give back what did not start; if `gone`, hold nothing."""
        if gone:
            self._hold(0)
        story, self._story = self._story, None
        if story is not None:
            story.cancel()
        current, self.current = self.current, None
        if isinstance(current, RequestResponseCycle):
            current.disconnected = True
            current.message_event.set()
        elif isinstance(current, Exchange) and not current.started:
            self._waiting.appendleft(current)
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, Exchange):
                item.give_back()

    def _begin(self, item: Exchange | AsgiRequest) -> None:
        if not isinstance(item, Exchange):
            self.current = item[0]
            if self.draining and not self._waiting:
                item[0].keep_alive = False
            self._start_asgi(*item)
            return
        self.current = item
        if item.reply is not None:
            self.respond(item, item.reply)
        elif item.complete:
            self.start(item, item.body.take())
        elif item.waits:
            self._transport.write(_CONTINUE)

    def refusal(self, exchange: Exchange, error: Exception) -> Reply:
        """What the handler makes of an error."""
        assert self._handler is not None
        return self._handler.refuse(exchange.head, error)

    def serve(self, exchange: Exchange, body: Buffer) -> None:
        """Admit a request that came in one piece, and that can be answered at once."""
        assert self._handler is not None
        self.current = exchange
        try:
            exchange.ticket = self._handler.admit(exchange.head)
        except Exception as error:
            self.respond(exchange, self.refusal(exchange, error))
        else:
            self.start(exchange, body)

    def start(self, exchange: Exchange, body: Buffer) -> None:
        """Hand the current request to the handler."""
        assert self._handler is not None
        assert exchange.ticket is not None
        exchange.started = True
        self._story = story = Story(self._handler.handle(exchange.ticket, body), self._answered)
        self._state.tasks.add(story)  # type: ignore[arg-type] # uvicorn waits for these, and cancels them, at the end
        story.begin()

    def _answered(self, story: Story[Reply], reply: Reply | None, error: BaseException | None) -> None:
        self._state.tasks.discard(story)
        exchange = self.current
        if story is not self._story or not isinstance(exchange, Exchange):
            return  # nobody waits for this answer any more
        self._story = None
        if isinstance(error, Exception):
            assert exchange.ticket is not None
            exchange.ticket.release()
            reply = self.refusal(exchange, error)
        if reply is None:
            self._transport.close()  # cancelled
            return
        exchange.ticket = None  # the exchange may wait for the next request: it holds nothing of this one
        self.respond(exchange, reply)
        if self._waiting:
            self.advance()

    def respond(self, exchange: Exchange, reply: Reply) -> None:
        """Write the answer to the current request, in one piece where it is small."""
        self.current = None
        transport, state = self._transport, self._state
        if transport.is_closing():
            return
        state.total_requests += 1
        if (
            reply.headers is not self._headers
            or reply.fresh is not self._fresh
            or state.default_headers is not self._defaults
            or reply.status != self._status
        ):
            self._open(reply)
        body = reply.body
        size = len(body[0]) if len(body) == 1 and type(body[0]) is bytes else reply.nbytes
        ends = not exchange.keep_alive or self._says_close or (self.draining and not self._waiting)
        last = (
            _LAST_LINES[ends and not self._says_close, exchange.old and not ends] if ends or exchange.old else b"\r\n"
        )
        head = self._form % (*reply.values, size), last
        if self._connection.access_log and exchange.target:
            self._log(exchange, reply.status)
        if size > JOIN_BYTES:
            transport.write(b"".join(head))
            self.current = LargeAnswer(body, size, ends=ends)
            self._go_on(self.current)
            return
        transport.write(b"".join([*head, *body]))
        if ends:
            self._hang_up()
        else:
            self.since = monotonic()

    def _go_on(self, answer: LargeAnswer) -> None:
        """Write the next slice; that after it in a turn of its own, and not before the client takes it."""
        if answer is not self.current or not self._takes_more():
            return
        self._transport.write(answer.take())
        if not self._takes_more():
            self._hold(answer.size)
        elif answer.left:
            self.turns.ask(self._go_on, answer)
        else:
            self._hold(0)
        if not answer.left:
            self.current = None
            self.since = monotonic()
            if answer.ends or (self.draining and not self._waiting):
                self._hang_up()
            elif self._waiting:
                self.advance()

    def _takes_more(self) -> bool:
        return not self._flow.write_paused and not self._transport.is_closing()

    def _hold(self, nbytes: int) -> None:
        """So many bytes wait for the client now."""
        if self._handler is not None and nbytes != self._held:
            self._handler.hold(nbytes - self._held)
            self._held = nbytes

    def _open(self, reply: Reply) -> None:
        """Make the form of the head, which stays the same from answer to answer: one `%` fills it in."""
        self._headers, self._fresh, self._defaults = reply.headers, reply.fresh, self._state.default_headers
        self._status = reply.status
        headers = [*self._defaults, *self._headers]
        lines = b"".join([STATUS_LINE[reply.status], *[b"%b: %b\r\n" % header for header in headers]])
        fresh = b"".join([name + b": %b\r\n" for name in self._fresh])
        self._form = lines.replace(b"%", b"%%") + fresh + b"content-length: %d\r\n"
        self._says_close = (b"connection", b"close") in headers

    def _log(self, exchange: Exchange, status: int) -> None:
        client = self._connection.client
        self._connection.access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            f"{client[0]}:{client[1]}" if client else "",
            "POST",
            exchange.target.decode("latin-1"),
            "1.0" if exchange.old else "1.1",
            status,
        )
