"""The inference route behind both doors: admit, decode, infer, encode."""

import logging
import os
from itertools import count
from math import inf

from app.api.access import Access, Door
from app.api.codec.reply import Encoded, Encoder
from app.api.codec.request import Decoded, Decoder
from app.api.errors import error_reply
from app.api.exchange import Buffer, Reply, RequestHead, Ticket
from app.api.headers import MAX_REQUEST_ID, InferHeaders, read_headers
from app.api.limits import InFlight
from app.domain.errors import Cancelled, PayloadTooLarge, ServingError
from app.domain.tensors import Tensors
from app.engine.engine import ESCAPES, Engine
from app.engine.expiry import Expiry, Watch, unwatched
from app.engine.request import InferRequest, InferResult, Timings
from app.runtime.registry import Generation

logger = logging.getLogger(__name__)

UNSAID = "unsaid"

#: Bodies and answers up to this many bytes are decoded and encoded on the event loop: a hop costs more.
IN_PLACE_BYTES = 65_536


class Admission:
    """An admitted request's place in the in-flight counts; given back once."""

    __slots__ = ("_code", "_inference", "_nbytes", "_open", "asked", "deadline", "generation", "head", "headers",
                 "request_id")  # fmt: skip

    def __init__(
        self,
        inference: "Inference",
        head: RequestHead,
        headers: InferHeaders,
        request_id: bytes,
        asked: Generation,
        generation: Generation,
        deadline: float,
    ) -> None:
        self._inference = inference
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
        """As far as the headers tell; monotonic seconds, infinite where there is none."""

    def divert(self, deadline: float) -> Generation | None:
        """Go to the fallback, one step only; it, or None where there is none that can take the request."""
        other = self._inference.engine.divert(self.generation, deadline) if self.generation is self.asked else None
        if other is not None:
            self.generation = other
        return other

    def grow(self, nbytes: int) -> None:
        """Account for body bytes that no Content-Length announced. Raises `PayloadTooLarge` or `TooManyRequests`."""
        try:
            self._inference.in_flight.grow(nbytes, self._nbytes)
        except ServingError as error:
            self._code = error.code
            raise
        self._nbytes += nbytes

    def release(self, code: str | None = UNSAID) -> None:
        """Give the place back, the first time.

        `code` is that of the error the request ended with, None for an answer; a request of which nothing is said
        was refused by `grow`, or cancelled.
        """
        if self._open:
            self._open = False
            inference, engine = self._inference, self._inference.engine
            inference.in_flight.leave(self._nbytes)
            seconds = engine.clock() - self.head.received_at
            engine.end(self.generation, self._code if code is UNSAID else code, seconds)


class Inference:
    """Serves `POST /v2/models/{name}[/versions/{version}]/infer`. Event loop only."""

    def __init__(self, engine: Engine, access: Access, in_flight: InFlight, max_json_bytes: int) -> None:
        self.engine = engine
        self.in_flight = in_flight
        self._access = access
        self._max_json_bytes = max_json_bytes
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._ids = count(1)
        self._id_prefix = os.urandom(6).hex()

    def admit(self, head: RequestHead) -> Ticket:
        """Refuse what the headers suffice to refuse, before the body is read. Raises `ServingError`."""
        headers: InferHeaders | None = head.read
        if headers is None:
            headers = head.read = read_headers(head.headers)
        if not self._access.api_is_open:
            self._access.check(Door.API, headers.authorization)
        asked = self.engine.resolve(head.model, head.version)
        timeout = headers.timeout
        if default_ms := asked.policy.default_timeout_ms:
            timeout = min(timeout, default_ms / 1000)
        deadline = head.received_at + timeout
        nbytes = head.content_length or 0
        self.in_flight.enter(head.model, asked.holders.count, nbytes)
        try:
            generation = self.engine.begin(asked, deadline, head.received_at)
        except ServingError:
            self.in_flight.leave(nbytes)
            raise
        return Admission(self, head, headers, headers.request_id or self._new_id(), asked, generation, deadline)

    def refuse(self, head: RequestHead, error: Exception) -> Reply:
        """The reply to a request that was not admitted."""
        request_id = next((value for name, value in head.headers if name == b"x-request-id"), b"")[:MAX_REQUEST_ID]
        return self._failed(error, request_id or self._new_id())

    def _new_id(self) -> bytes:
        return f"{self._id_prefix}-{next(self._ids):x}".encode()

    async def handle(self, ticket: Ticket, body: Buffer) -> Reply:
        """Answer an admitted request; every failure becomes a reply. Cancelling withdraws the request."""
        assert isinstance(ticket, Admission)
        code: str | None = UNSAID  # stands when the caller goes away
        deadline = Deadline(ticket)
        try:
            reply = await self._answer(ticket, body, deadline)
            code = None
        except Exception as error:
            reply = self._failed(error, ticket.request_id)
            code = error.code if isinstance(error, ServingError) else "internal"
        finally:
            if deadline.at < inf:
                deadline.cancel()
            ticket.release(code)
        return reply

    async def _answer(self, admission: Admission, body: Buffer, deadline: "Deadline") -> Reply:
        engine, generation = self.engine, admission.generation
        began = engine.clock()
        if deadline.at < inf:
            deadline.begin(began)
        if len(body) <= IN_PLACE_BYTES:
            decoded = self._decode(admission, body)
        else:
            decoded = await deadline.watch(engine.offload(self._decode, admission, body))
        decoded_at = engine.clock()
        if decoded.timeout_us is not None:
            deadline.tighten(decoded.timeout_us / 1e6, decoded_at)
        request = InferRequest(generation, decoded.inputs, decoded_at, decoded.parameters, deadline.at, deadline.watch)
        try:
            result = await engine.infer(request)
        except ESCAPES:
            other = admission.divert(deadline.at)
            if other is None:
                raise
            result = await engine.infer(request._replace(generation=other))
        answered_at = engine.clock()
        diverted_from = None if result.generation is admission.asked else admission.head.model
        if _small(result.outputs):
            encoded = self._encode(decoded, result, diverted_from)
        else:
            encoded = await deadline.watch(engine.offload(self._encode, decoded, result, diverted_from))
        timings, now = result.timings, engine.clock()
        timings.decode, timings.encode = decoded_at - began, now - answered_at
        if deadline.at < inf:
            engine.learn_reply(result.generation, now - result.executed_at)
        fresh = ((b"server-timing", server_timing(timings)), (b"x-request-id", admission.request_id))
        return Reply(200, encoded.headers, encoded.body, fresh)

    def _decode(self, admission: Admission, body: Buffer) -> Decoded:
        generation, header_length = admission.generation, admission.headers.header_length
        if len(body) > self._max_json_bytes:
            self._check_json(len(body), header_length)
        return self._decoder.decode(body, header_length, generation.model_id, generation.bundle.spec)

    def _check_json(self, size: int, header_length: str | None) -> None:
        """Refuse a JSON part above the limit: its parser holds the interpreter, and so every other request."""
        if header_length is not None and header_length.isdecimal():
            size = int(header_length[:20])
        if size > self._max_json_bytes:
            raise PayloadTooLarge(
                f"the JSON part has {size} bytes; the most is {self._max_json_bytes}: send tensors in binary form "
                f"(parameter binary_data_size and header Inference-Header-Content-Length)"
            )

    def _encode(self, decoded: Decoded, result: InferResult, diverted_from: str | None) -> Encoded:
        parameters: dict[str, str | int] | None = None
        if decoded.parameters or diverted_from is not None:
            parameters = _answer_parameters(decoded, result, diverted_from)
        generation = result.generation
        return self._encoder.encode(decoded, generation.model_id, generation.bundle.spec, result.outputs, parameters)

    def _failed(self, error: Exception, request_id: bytes) -> Reply:
        if not isinstance(error, ServingError):
            logger.error("request %s failed", request_id.decode("latin-1"), exc_info=error)
            error = ServingError("internal error")
        reply = error_reply(error, request_id.decode("latin-1"))
        if reply.status == 500:
            logger.error("request %s: 500 %s: %s", request_id.decode("latin-1"), error.code, error.message)
        reply.fresh = ((b"x-request-id", request_id),)
        return reply


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


def _small(outputs: Tensors) -> bool:
    """Whether the outputs are quick to encode; of BYTES the array only holds pointers, so few count as quick."""
    size = 0
    for array in outputs.values():
        size += array.size * 1024 if array.dtype.hasobject else array.nbytes
    return size <= IN_PLACE_BYTES


def _answer_parameters(decoded: Decoded, result: InferResult, diverted_from: str | None) -> dict[str, str | int]:
    parameters: dict[str, str | int] = {}
    if decoded.parameters.get("explain") is True:
        parameters |= {"batch_rows": result.batch_rows, "batch_size": result.batch_size}
    if diverted_from is not None:
        parameters["fallback_from"] = diverted_from
    return parameters


def server_timing(timings: Timings) -> bytes:
    """The value of the `Server-Timing` header: milliseconds per stage."""
    return (
        b"decode;dur=%.3f, preprocess;dur=%.3f, queue;dur=%.3f, load;dur=%.3f, compute;dur=%.3f, "
        b"postprocess;dur=%.3f, encode;dur=%.3f"
    ) % (
        timings.decode * 1e3,
        timings.preprocess * 1e3,
        timings.queue * 1e3,
        timings.load * 1e3,
        timings.compute * 1e3,
        timings.postprocess * 1e3,
        timings.encode * 1e3,
    )
