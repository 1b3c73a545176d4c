"""What an admitted request holds until it ends: its place in the counts, and its deadline."""

from app.api.compression import decompress
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


class Admission:
    """An admitted request's place in the in-flight counts; given back once."""

    __slots__ = ("_code", "_engine", "_in_flight", "_journal", "_nbytes", "_open", "asked", "batch", "deadline",
                 "generation", "head", "headers", "request_id", "rows", "timings")  # fmt: skip

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
        self._open = True
        self._code: str | None = Cancelled.reason
        self.head = head
        self.headers = headers
        self.request_id = request_id
        self.asked = asked
        """What the client named; `generation`, which serves the request, may be its fallback."""
        self.generation = generation
        self.deadline = deadline
        """As far as it is known; monotonic seconds, infinite where there is none."""
        self.timings = Timings()
        self.rows: int | None = None
        self.batch: tuple[int | None, int | None] = (None, None)
        """Rows and compiled size of the dispatch that answered it."""

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

    async def unpack(self, body: Buffer, coding: str, deadline: "Deadline") -> bytes:
        """The plain body of a compressed one, which counts from now on. Raises as `decompress` and `grow` do."""
        most = self._in_flight.max_body_bytes
        plain = await deadline.watch(self._engine.offload(decompress, body, coding, most))
        self.grow(len(plain) - self._nbytes)
        return plain

    def release(self, code: str | None = UNSAID) -> None:
        """Give the place back, the first time.

        `code` is that of the error the request ended with, None for an answer; a request of which nothing is said
        was refused by `grow`, or cancelled.
        """
        if self._open:
            self._open = False
            self._in_flight.leave(self._nbytes)
            head, generation, stages = self.head, self.generation, self.timings.stages
            code, received_at = self._code if code is UNSAID else code, head.received_at
            now = self._engine.clock()
            seconds = now - received_at
            self._engine.end(generation, code, seconds, stages)
            if code is None:
                generation.account.answered_at = now
            batch_rows, batch_size = self.batch
            facts = (
                received_at, generation.bundle.spec.name, self.request_id, code, seconds, self.deadline - received_at,
                self.rows, batch_rows, batch_size, self._nbytes, stages,
            )  # fmt: skip
            if code is None and self._journal.only_remembers:
                self._journal.remember(facts)
            else:
                self._journal.ended(EndedRequest._make(facts), head.headers)


class Deadline:
    """The deadline of one request as it becomes known: by header and by model at first, by its parameters later.

    `at` is in monotonic seconds, counted from complete request headers, infinite where there is none; `watch` fails
    what the request awaits when it passes. Event loop only.
    """

    __slots__ = ("_expiry", "_received_at", "at", "watch")

    def __init__(self, admission: Admission) -> None:
        self._received_at = admission.head.received_at
        self._expiry: Expiry | None = None
        self.at = admission.deadline
        self.watch: Watch = unwatched

    def begin(self, now: float) -> None:
        """Start the timer of a finite deadline."""
        self._expiry = Expiry(self.at - now)
        self.watch = self._expiry.watch

    def tighten(self, timeout: float, now: float) -> None:
        """The request itself allows so many seconds; the tightest counts."""
        if self._received_at + timeout < self.at:
            self.cancel()
            self.at = self._received_at + timeout
            self.begin(now)

    def cancel(self) -> None:
        """The request has its answer."""
        if self._expiry is not None:
            self._expiry.cancel()
