"""The JSON part of an inference request → a plan: everything that does not depend on the binary bytes."""

from dataclasses import dataclass, fields
from math import prod
from typing import Any

import orjson

from app.api.codec.binary import UNPACKERS, unpack_whole
from app.api.codec.depth import check_depth
from app.api.codec.inputs import read_inputs
from app.api.codec.parameters import OutputRequest, read_outputs, request_parameters
from app.api.codec.ranges import Shared, SharedInput
from app.api.codec.slots import Slot, Unpack
from app.api.codec.wording import show, show_shape
from app.api.exchange import Buffer
from app.domain.errors import InvalidRequest
from app.domain.model import ModelSpec
from app.domain.tensors import Array, TensorSpec

_MEMBERS = ("id", "parameters", "inputs", "outputs")


@dataclass(frozen=True, slots=True)
class Plan:
    """A request without its binary bytes: `arrays` are the inputs that came as JSON, `slots` say where the others are.

    `size` is the length that the whole body must have; `rows` are those that the client sent, as `ModelSpec.check_rows`
    counts them. `shared` is None where nothing is in shared memory.
    """

    id: str | None
    parameters: dict[str, Any]
    outputs: tuple[OutputRequest, ...] | None
    binary_default: bool
    timeout_us: int | None
    arrays: dict[str, Array]
    slots: tuple[Slot, ...]
    size: int
    rows: int
    shared: Shared | None = None

    def __reduce__(self) -> tuple[type["Plan"], tuple[Any, ...]]:
        """To be pickled as the call that makes it: what is compiled can be pickled in no other way."""
        return Plan, tuple([getattr(self, each.name) for each in fields(self)])

    def check_size(self, size: int) -> None:
        """Raise `InvalidRequest` for a body of `size` bytes that is shorter or longer than announced."""
        for slot in self.slots:
            if slot.stop > size:
                raise InvalidRequest(
                    f"unexpected size for input {slot.name!r}: expecting {slot.stop - max(slot.start, size)} "
                    f"additional bytes of its {slot.stop - slot.start}"
                )
        if size > self.size:
            last = repr(self.slots[-1].name) if self.slots else "none of which is binary"
            raise InvalidRequest(
                f"unexpected additional input data: {size - self.size} bytes follow the last of the inputs, {last}"
            )


def parse_head(document: Buffer, start: int, spec: ModelSpec) -> Plan:
    """Understand the JSON part of a request to `spec`; the binary tensors begin at byte `start` of the body.

    Raises `InvalidRequest` naming the culprit, what was expected and what was given.
    """
    try:
        head = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the JSON part of the request is malformed: {error}") from None
    if not isinstance(head, dict):
        raise InvalidRequest(f"the request must be a JSON object, got {show(head)}")
    check_depth(head, _MEMBERS, 1)
    identifier = head.get("id", "")
    if not isinstance(identifier, str):
        raise InvalidRequest(f"'id' must be a string, got {show(identifier)}")
    parameters = request_parameters(head)
    outputs = read_outputs(head, spec, parameters.binary_default)
    arrays, slots, shared, rows = read_inputs(head.get("inputs"), start, spec)
    return Plan(
        id=identifier or None,
        parameters=parameters.rest,
        outputs=outputs,
        binary_default=parameters.binary_default,
        timeout_us=parameters.timeout_us,
        arrays=arrays,
        slots=slots,
        size=slots[-1].stop if slots else start,
        rows=rows,
        shared=_shared(shared, outputs),
    )


def _shared(inputs: tuple[SharedInput, ...], outputs: tuple[OutputRequest, ...] | None) -> Shared | None:
    places = () if outputs is None else tuple([each.shared for each in outputs if each.shared is not None])
    return Shared(inputs, places) if inputs or places else None


def plan_raw(size: int, spec: ModelSpec) -> Plan:
    """The plan of a raw request (header length 0): `size` bytes are the one input, in a batch of one.

    All outputs are then wanted in binary. Raises `InvalidRequest` where the model or the size does not allow it.
    """
    if len(spec.client_inputs) != 1:
        names = [declared.name for declared in spec.client_inputs]
        raise InvalidRequest(f"a raw binary request needs a model with exactly one input; {spec.name!r} takes {names}")
    (declared,) = spec.client_inputs
    shape = tuple(1 if axis == declared.batch_axis else extent for axis, extent in enumerate(declared.shape))
    unpack: Unpack | None = unpack_whole
    if declared.datatype == "BYTES":
        shape = tuple(1 if extent == -1 else extent for extent in shape)
        fits = prod(shape) == 1
    else:
        shape = _infer_extent(shape, size, declared)
        fits = prod(shape) * declared.dtype.itemsize == size
        unpack = UNPACKERS.get(declared.datatype)
    if not fits:
        raise InvalidRequest(
            f"unexpected size for input {declared.name!r}: {size} raw bytes are not one row of {declared.datatype} "
            f"{show_shape(declared.shape)}"
        )
    slot = Slot(declared.name, declared.dtype, shape, 0, size, unpack)
    return Plan(None, {}, None, True, None, {}, (slot,), size, 1)


def _infer_extent(shape: tuple[int, ...], size: int, declared: TensorSpec) -> tuple[int, ...]:
    if shape.count(-1) > 1:
        raise InvalidRequest(
            f"a raw binary request cannot tell the shape of input {declared.name!r}: {show_shape(declared.shape)} has "
            "more than one variable extent besides the batch"
        )
    one = declared.dtype.itemsize * abs(prod(shape))
    return tuple(size // max(one, 1) if extent == -1 else extent for extent in shape)
