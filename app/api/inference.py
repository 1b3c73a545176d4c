"""The inference route behind both doors: admit, decode, infer, encode."""

import asyncio
import logging
import os
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf

from app.api.access import Access, Door
from app.api.admission import UNSAID, Admission
from app.api.codec.aside import LARGE_JSON, Response, encode_large, is_large, parse_large
from app.api.codec.head import parse_head
from app.api.codec.ranges import Shared
from app.api.codec.reply import Encoded, Encoder
from app.api.codec.request import Decoded, Decoder, Parse
from app.api.compression import compress, worth_compressing
from app.api.errors import error_reply
from app.api.exchange import Buffer, Reply, RequestHead, Ticket
from app.api.headers import InferHeaders, read_headers, request_id_of
from app.api.journal import EndedRequest, Journal
from app.api.limits import InFlight
from app.api.response import IN_PLACE_BYTES, answer_parameters, is_small
from app.api.server_timing import server_timing
from app.domain.errors import InvalidRequest, OutOfMemory, PayloadTooLarge, ServingError
from app.domain.tensors import Tensors
from app.engine.engine import ESCAPES, Engine
from app.engine.request import InferRequest, InferResult
from app.repository.bundle import Bundle
from app.runtime.aside import Aside
from app.runtime.recent import DispatchLog
from app.runtime.shared_memory import Regions

logger = logging.getLogger(__name__)

#: Of an answer, the header lines that differ from one to the next. Declared of any length: a compiled pair is made anew
#: each time it is used, and doors know this one by its identity.
_FRESH: tuple[bytes, ...] = (b"server-timing", b"x-request-id")

_NO_MEMORY = OutOfMemory("no memory to read this request, or to write its answer")


class Inference:
    """Serves `POST /v2/models/{name}[/versions/{version}]/infer`. Event loop only."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        in_flight: InFlight,
        max_json_bytes: int,
        aside: Aside | None = None,
        journal: Journal | None = None,
        regions: Regions | None = None,
    ) -> None:
        self.engine = engine
        self.regions = regions
        self.journal = journal or Journal(engine.clock, DispatchLog())
        self.in_flight = in_flight
        self._access = access
        self._max_json_bytes = max_json_bytes
        self._aside = aside
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._ids = count(1)
        self._id_prefix = os.urandom(6).hex().encode()

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
        except ServingError as error:
            self.in_flight.leave(nbytes)
            self._note_refusal(head, error)
            head.admitted = True  # as far as the books go: the model's account has it
            raise
        head.admitted = True
        return Admission(
            self.engine,
            self.in_flight,
            self.journal,
            head,
            headers,
            headers.request_id or self._new_id(),
            asked,
            generation,
            deadline,
        )

    def hold(self, nbytes: int) -> None:
        """Count bytes of answers that their clients do not take; negative when they are gone."""
        self.in_flight.hold(nbytes)

    def refuse(self, head: RequestHead, error: Exception) -> Reply:
        """The reply to a request that was not admitted, or that its client did not complete."""
        if not head.admitted:
            self.journal.refusals[self._note_refusal(head, error)] += 1
        return self._failed(error, _id_of(head))

    def _note_refusal(self, head: RequestHead, error: Exception) -> str:
        """Remember a request that no model took; the code of its error."""
        code = error.code if isinstance(error, ServingError) else "internal"
        request_id, registry = _id_of(head), self.engine.registry
        seconds, nbytes = self.engine.clock() - head.received_at, head.content_length or 0
        model = head.model if head.model in registry.public else None
        timeout = inf if head.read is None else head.read.timeout
        if model is not None and (serving := registry.serving.get(model)) is not None:
            timeout = min(timeout, (serving.policy.default_timeout_ms or inf) / 1e3)
        self.journal.ended(
            EndedRequest(head.received_at, model, request_id, code, seconds, timeout, nbytes=nbytes), head.headers
        )
        return code

    def _new_id(self) -> bytes:
        return b"%b-%x" % (self._id_prefix, next(self._ids))

    async def handle(self, ticket: Ticket, body: Buffer) -> Reply:
        """Answer an admitted request; every failure becomes a reply. Cancelling withdraws the request."""
        assert isinstance(ticket, Admission)
        code: str | None = UNSAID  # stands when the caller goes away
        try:
            if ticket.deadline < inf:
                ticket.start_timer(self.engine.clock())
            reply = await self._answer(ticket, body)
            code = None
        except Exception as error:
            told = _NO_MEMORY if isinstance(error, MemoryError) else error
            reply = self._failed(told, ticket.request_id)
            code = told.code if isinstance(told, ServingError) else "internal"
            error.__traceback__ = None  # its frames hold the body, and through the deadline the error itself
        finally:
            if ticket.deadline < inf:
                ticket.stop_timer()
            ticket.release(code)
        return reply

    async def _answer(self, admission: Admission, body: Buffer) -> Reply:
        engine, headers = self.engine, admission.headers
        began = engine.clock()
        if len(body) <= IN_PLACE_BYTES and headers.content_encoding is None:
            decoded = self._decode(admission, body)
        else:
            decoded = await self._decode_elsewhere(admission, body)
        if decoded.shared is not None or decoded.timeout_us is not None:
            await self._obey(admission, decoded)
        decoded_at, timings = engine.clock(), admission.timings
        timings.decode = decoded_at - began
        admission.rows = decoded.rows
        request = InferRequest(
            admission.generation,
            decoded.inputs,
            decoded_at,
            decoded.parameters,
            admission.deadline,
            admission.watch,
            timings,
        )
        result: InferResult | None = None
        refusal: ServingError | None = None
        try:
            result = await engine.infer(request)
        except ESCAPES as error:
            refusal = error.with_traceback(None)  # which holds this frame, and so itself
        if result is None:  # out of the handler: nothing compiled may await while it handles an exception
            assert refusal is not None
            result = await self._escape(admission, request, refusal)
        answered_at = engine.clock()
        generation, outputs, timings = result.generation, result.outputs, result.timings
        admission.batch_rows, admission.batch_size = result.batch_rows, result.batch_size
        parameters = answer_parameters(decoded, result, admission.diverted_from)
        model_id, spec = generation.model_id, generation.bundle.spec
        if is_small(outputs):
            encoded = self._encoder.encode(decoded, model_id, spec, outputs, parameters)
        else:
            response = Response(decoded, model_id, spec, outputs, parameters)
            encoded = await admission.watch(self._encode_elsewhere(response))
        if headers.coding is not None and worth_compressing(encoded[1]):
            encoded = await admission.watch(engine.offload(_compressed, headers.coding, encoded))
        now = engine.clock()
        timings.encode = now - answered_at
        if admission.deadline < inf:
            engine.learn_reply(generation, now - result.executed_at)
        headers_out, buffers = encoded
        return Reply(200, headers_out, buffers, _FRESH, (server_timing(timings), admission.request_id))

    async def _escape(self, admission: Admission, request: InferRequest, refusal: ServingError) -> InferResult:
        """Let the fallback answer what its own model refuses; the refusal stands otherwise."""
        other = admission.divert(admission.deadline)
        if other is None:
            raise refusal
        bundle = other.bundle
        check_text(bundle, request.inputs)
        return await self.engine.infer(replace(request, generation=other))

    async def _decode_elsewhere(self, admission: Admission, body: Buffer) -> Decoded:
        """Decode what is compressed or large: not on the event loop, and large JSON not in this process."""
        headers = admission.headers
        if headers.content_encoding is not None:
            body = await admission.unpack(body, headers.content_encoding)
        if self._aside is None or _json_size(len(body), headers.header_length) <= LARGE_JSON:
            return await admission.watch(self.engine.offload(self._decode, admission, body))
        parse = partial(parse_large, self._aside.ask)
        return await admission.watch(self._aside.run(self._decode, admission, body, parse))

    def _decode(self, admission: Admission, body: Buffer, parse: Parse = parse_head) -> Decoded:
        generation, header_length = admission.generation, admission.headers.header_length
        if len(body) > self._max_json_bytes:
            self._check_json(_json_size(len(body), header_length))
        bundle = generation.bundle
        spec = bundle.spec
        decoded = self._decoder.decode(body, header_length, generation.model_id, spec, parse)
        if spec.text_inputs and decoded.shared is None:
            check_text(bundle, decoded.inputs)
        return decoded

    async def _obey(self, admission: Admission, decoded: Decoded) -> None:
        """Heed what few requests ask for."""
        if decoded.timeout_us is not None:
            admission.tighten(decoded.timeout_us / 1e6, self.engine.clock())
        if decoded.shared is not None:
            await self._attach(admission, decoded, decoded.shared)

    async def _attach(self, admission: Admission, decoded: Decoded, shared: Shared) -> None:
        """Hold the regions that a request names until it is answered, and read the inputs that are there."""
        if self.regions is None:
            raise InvalidRequest("'shared_memory_region': shared memory is not offered, send the data itself")
        decoded.regions = self.regions.hold(shared.regions)
        shared.check(decoded.regions)
        admission.grow(shared.nbytes)
        if shared.nbytes <= IN_PLACE_BYTES:
            decoded.inputs.update(shared.read(decoded.regions))
        else:
            decoded.inputs.update(await admission.watch(self.engine.offload(shared.read, decoded.regions)))
        check_text(admission.generation.bundle, decoded.inputs)

    def _check_json(self, size: int) -> None:
        if size > self._max_json_bytes:
            raise PayloadTooLarge(
                f"the JSON part has {size} bytes; the most is {self._max_json_bytes}: send tensors in binary form "
                f"(parameter binary_data_size and header Inference-Header-Content-Length)"
            )

    def _encode_elsewhere(self, response: Response) -> "asyncio.Future[Encoded]":
        """Encode what is large: not on the event loop, and large JSON not in this process."""
        if self._aside is None or not is_large(response.request, response.spec, response.outputs):
            return self.engine.offload(self._encoder.encode, *response)
        return self._aside.run(encode_large, self._aside.ask, self._encoder, response)

    def _failed(self, error: Exception, request_id: bytes) -> Reply:
        if not isinstance(error, ServingError):
            logger.error("request %s failed", request_id.decode("latin-1"), exc_info=error)
            error = ServingError("internal error")
        reply = error_reply(error, request_id.decode("latin-1"))
        reply.fresh, reply.values = (b"x-request-id",), (request_id,)
        return reply


def _id_of(head: RequestHead) -> bytes:
    """Of a request that is refused: the same in its answer and in the log."""
    if head.request_id is None:
        head.request_id = request_id_of(head.headers)
    return head.request_id


def check_text(bundle: Bundle, inputs: Tensors) -> None:
    """Refuse text that is none, where no hook makes the model's inputs of what the client sent."""
    spec = bundle.spec
    if spec.text_inputs and bundle.hooks.preprocess is None:
        spec.check_text(inputs)


def _compressed(coding: str, encoded: Encoded) -> Encoded:
    headers, buffers = encoded
    body = compress(buffers, coding)
    return encoded if body is None else ((*headers, (b"content-encoding", coding.encode())), body)


def _json_size(size: int, header_length: str | None) -> int:
    """How much of a body of `size` bytes is JSON, as far as the header can be believed."""
    if header_length is not None and header_length.isdecimal():
        return min(int(header_length[:20]), size)
    return size
