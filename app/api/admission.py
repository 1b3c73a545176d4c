"""What an admitted request holds until it ends: its place in the counts, and its timer."""

from math import inf

from app.api.compression import Inflater
from app.api.exchange import Buffer, RequestHead
from app.api.headers import InferHeaders
from app.api.journal import EndedRequest, Journal
from app.api.limits import InFlight
from app.domain.errors import Cancelled, ServingError
from app.engine.engine import Engine
from app.engine.expiry import Expiry, Watch, unwatched
from app.engine.request import Timings
from app.runtime.registry import Generation

UNSAID = "unsaid"

#: Bytes that a compressed body may grow by between two looks at what is in flight.
INFLATE_STEP = 1 << 22

#: A byte of a compressed body stands for so many at most.
MOST_INFLATED = 1032


class Admission:
    """An admitted request's place in the in-flight counts, given back once, and its deadline as it becomes known.

    By header and by model at first, by its parameters later: `deadline` is in monotonic seconds, infinite where there
    is none; `watch` fails what the request awaits when it passes. Event loop only.
    """

    # On the class, for what is the same in most: an attribute that is set costs each request.
    _open = True
    _code: str | None = None
    _expiry: Expiry | None = None
    rows: int | None = None
    batch_rows: int | None = None
    batch_size: int | None = None
    """Of the dispatch that answered it."""

    def __init__(
        self,
        engine: Engine,
        in_flight: InFlight,
        journal: Journal,
        head: RequestHead,
        headers: InferHeaders,
        request_id: bytes,
        asked: Generation,
        generation: Generation,
        deadline: float,
    ) -> None:
        self._engine = engine
        self._in_flight = in_flight
        self._journal = journal
        self._nbytes = head.content_length or 0
        self.head = head
        self.headers = headers
        self.request_id = request_id
        self.asked = asked
        """What the client named; `generation`, which serves the request, may be its fallback."""
        self.generation = generation
        self.deadline = deadline
        self.timings = Timings()
        self.watch: Watch = unwatched

    @property
    def diverted_from(self) -> str | None:
        """The model that the client named, where another one serves the request."""
        return None if self.generation is self.asked else self.head.model

    def start_timer(self, now: float) -> None:
        """Let a finite deadline fail what is awaited from now on."""
        if self.deadline < inf:
            self._expiry = Expiry(self.deadline - now)
            self.watch = self._expiry.watch

    def tighten(self, timeout: float, now: float) -> None:
        """The request itself allows so many seconds; the tightest counts."""
        if self.head.received_at + timeout < self.deadline:
            self.stop_timer()
            self.deadline = self.head.received_at + timeout
            self.start_timer(now)

    def stop_timer(self) -> None:
        """The request has its answer."""
        if self._expiry is not None:
            self._expiry.cancel()

    def divert(self, deadline: float) -> Generation | None:
        """Go to the fallback, one step only; it, or None where there is none that can take the request."""
        other = self._engine.divert(self.generation, deadline) if self.generation is self.asked else None
        if other is not None:
            self.generation = other
        return other

    def grow(self, nbytes: int) -> None:
        """Account for body bytes that no Content-Length announced. Raises `PayloadTooLarge` or `TooManyRequests`."""
        try:
            self._in_flight.grow(nbytes, self._nbytes)
        except ServingError as error:
            self._code = error.code
            raise
        self._nbytes += nbytes

    async def unpack(self, body: Buffer, coding: str) -> bytearray:
        """The plain body of a compressed one. Raises as `Inflater.more` and `grow` do.

        Bytes count before they exist, a step at a time, and at last as many as there are.
        """
        most = self._in_flight.max_body_bytes
        inflater, step = Inflater(body, coding, most), min(INFLATE_STEP, MOST_INFLATED * len(body) + 64)
        done = False
        while not done:
            there = len(inflater.plain)
            target = min(there + step, most)
            if target > self._nbytes:
                self.grow(target - self._nbytes)
            done = await self.watch(self._engine.offload(inflater.more, max(target - there, 1)))
        self._in_flight.hold(len(inflater.plain) - self._nbytes)
        self._nbytes = len(inflater.plain)
        return inflater.plain

    def release(self, code: str | None = UNSAID) -> None:
        """Give the place back, the first time.

        `code` is that of the error the request ended with, None for an answer; a request of which nothing is said
        was refused by `grow`, or cancelled.
        """
        if self._open:
            self._open = False
            self._in_flight.leave(self._nbytes)
            head, generation, received_at = self.head, self.generation, self.head.received_at
            now, timeout = self._engine.clock(), self.deadline - received_at
            seconds = now - received_at
            model, asked, rows, size = generation.bundle.spec.name, self.diverted_from, self.batch_rows, self.batch_size
            if code is None:
                times = self.timings.pack(received_at, timeout, seconds)
                generation.account.answered_at = now
                self._engine.end(generation, None, seconds, times)
                answer = times, model, self.request_id, self.rows, rows, size, self._nbytes, asked
                self._journal.answered(answer, head.headers)
            else:
                code = (self._code or Cancelled.reason) if code is UNSAID else code
                self._engine.end(generation, code, seconds)
                ended = EndedRequest(
                    received_at, model, self.request_id, code, seconds, timeout, self.rows, rows, size, self._nbytes,
                    self.timings.stages, asked,
                )  # fmt: skip
                self._journal.ended(ended, head.headers)
