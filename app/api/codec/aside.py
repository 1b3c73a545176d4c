"""Large JSON is read and written in a process of its own: its library holds the interpreter, and so all other requests.

What comes back of a request are arrays, through shared memory. BYTES travel in their binary form: a list of a million
strings would have to be unpickled in one go, and the binary form is cut up in Python, which can be interrupted.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from app.api.codec.binary import pack, unpack_bytes
from app.api.codec.head import Plan, parse_head
from app.api.codec.parameters import OutputRequest
from app.api.codec.reply import Encoded, Encoder, Headers
from app.api.codec.request import Decoded
from app.api.codec.slots import Slot
from app.api.exchange import Buffer
from app.domain.errors import ServingError
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors
from app.runtime import hook_worker
from app.runtime.aside import Unavailable
from app.runtime.hook_channel import Channel

#: JSON parts above this many bytes.
LARGE_JSON = 1 << 20

#: Elements written as JSON: a megabyte or two.
LARGE_ANSWER = 1 << 17

COMMAND = "from app.api.codec.aside import main; main()"


class Question(NamedTuple):
    """The arguments of `parse_head`, the document as an array."""

    document: Array
    start: int
    spec: ModelSpec


class Response(NamedTuple):
    """The arguments of `Encoder.encode`; of the request no inputs."""

    request: Decoded
    model_id: str
    spec: ModelSpec
    outputs: Tensors
    parameters: Mapping[str, Any] | None


class Written(NamedTuple):
    """As `Encoded`, in arrays, which need no copy on their way; or the error that there is instead."""

    headers: Headers
    body: list[Array]
    error: ServingError | None = None


class Answer(NamedTuple):
    """A plan whose BYTES arrays are packed, and the shapes of those; or why there is none."""

    plan: Plan | None
    packed: dict[str, tuple[int, ...]]
    error: ServingError | None = None


def parse_large(ask: Callable[[Question], Answer], document: Buffer, start: int, spec: ModelSpec) -> Plan:
    """As `parse_head`, in the process that `ask` asks; here where that is `Unavailable`."""
    try:
        answer = ask(Question(np.frombuffer(document, np.uint8), start, spec))
    except Unavailable:
        return parse_head(document, start, spec)
    if answer.plan is None:
        assert answer.error is not None
        raise answer.error
    return replace(answer.plan, arrays=_unpacked(answer.plan.arrays, answer.packed))


def is_large(request: Decoded, spec: ModelSpec, outputs: Tensors) -> bool:
    """Whether an answer is better written there. Not where it goes to shared memory, which is open in this process."""
    if request.shared is not None:
        return False
    wanted = request.outputs or [OutputRequest(each.name, request.binary_default) for each in spec.client_outputs]
    arrays = [outputs[each.name] for each in wanted if not (each.binary or each.classification)]
    return sum([array.size for array in arrays if not array.dtype.hasobject]) > LARGE_ANSWER


def encode_large(ask: Callable[[Response], Written], encoder: Encoder, response: Response) -> Encoded:
    """As `Encoder.encode`, in the process that `ask` asks; here where that is `Unavailable`."""
    try:
        headers, body, error = ask(response._replace(request=replace(response.request, inputs={})))
    except Unavailable:
        return encoder.encode(*response)
    if error is not None:
        raise error
    return headers, [array.data for array in body]


def write(response: Response) -> Written:
    """What the process does with one response."""
    try:
        headers, body = Encoder(0).encode(*response)
    except ServingError as error:
        return Written((), [], error)
    return Written(headers, [np.frombuffer(buffer, np.uint8) for buffer in body])


def answer(question: Question) -> Answer:
    """What the process does with one question."""
    document, start, spec = question
    try:
        plan = parse_head(document.data, start, spec)
    except ServingError as error:
        return Answer(None, {}, error)
    packed = {name: array.shape for name, array in plan.arrays.items() if array.dtype.hasobject}
    arrays = {name: _packed(array) if name in packed else array for name, array in plan.arrays.items()}
    return Answer(replace(plan, arrays=arrays), packed)


def serve(channel: Channel) -> None:
    """Answer until nothing more comes."""
    while True:
        try:
            question: Question | Response = channel.receive()
        except EOFError:
            return
        channel.send(write(question) if isinstance(question, Response) else answer(question))


def main() -> None:
    """The process."""
    hook_worker.main(serve)


def _packed(array: Array) -> Array:
    return np.frombuffer(pack(array), np.uint8)


def _unpacked(arrays: dict[str, Array], packed: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    restored = dict(arrays)
    for name, shape in packed.items():
        raw = arrays[name]
        restored[name] = unpack_bytes(raw.data, Slot(name, np.dtype(np.object_), shape, 0, raw.size))
    return restored
