"""An inference request, from bytes to tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from sys import maxsize
from typing import Any

from app.api.codec.head import Plan, parse_head, plan_raw
from app.api.codec.parameters import OutputRequest
from app.api.codec.ranges import Shared
from app.api.codec.recent import Recent
from app.api.codec.slots import read_slots
from app.api.codec.wording import show
from app.api.exchange import Buffer
from app.domain.errors import InvalidRequest
from app.domain.model import ModelSpec
from app.domain.tensors import Array
from app.runtime.shared_memory import Region

#: What understands the JSON part of a request, as `parse_head` does.
Parse = Callable[[Buffer, int, ModelSpec], Plan]

_MAX_CACHED_HEAD = 4096


@dataclass(slots=True, init=False)
class Decoded:
    """A request whose `inputs` are valid against the model's `client_inputs`, one row count across all of them.

    Arrays may be read-only views of the body, which begin where the JSON happens to end, so at any alignment.
    `parameters` are those that the codec does not consume (`timeout`, `priority`, `sequence_*` and `binary_data_output`
    are). `outputs` is None for all of them, each then binary if `binary_default`. `timeout_us` is None for no limit;
    `rows` is the one row count of all inputs.
    """

    id: str | None
    inputs: dict[str, Array]
    parameters: dict[str, Any]
    outputs: tuple[OutputRequest, ...] | None
    binary_default: bool
    timeout_us: int | None
    rows: int
    shared: Shared | None
    """What is in shared memory: those inputs are missing from `inputs` until they were read."""
    regions: Mapping[str, Region] | None
    """By name, those that this request holds until it is answered."""

    def __init__(  # by hand: see `RequestHead`
        self,
        id: str | None,  # noqa: A002 - as the protocol calls it
        inputs: dict[str, Array],
        parameters: dict[str, Any],
        outputs: tuple[OutputRequest, ...] | None,
        binary_default: bool,
        timeout_us: int | None,
        rows: int = 1,
        shared: Shared | None = None,
        regions: Mapping[str, Region] | None = None,
    ) -> None:
        self.id = id
        self.inputs = inputs
        self.parameters = parameters
        self.outputs = outputs
        self.binary_default = binary_default
        self.timeout_us = timeout_us
        self.rows = rows
        self.shared = shared
        self.regions = regions

    def __reduce__(self) -> tuple[type["Decoded"], tuple[Any, ...]]:
        """As that of `Plan`."""
        return Decoded, tuple([getattr(self, each.name) for each in fields(self)])


class Decoder:
    """Decodes requests and remembers the heads of all-binary ones: clients repeat themselves. Any thread."""

    def __init__(self, remembered: int = 512) -> None:
        self._plans: Recent[tuple[str, bytes], Plan] = Recent(remembered)

    def decode(
        self,
        body: Buffer,
        header_length: str | None,
        model_id: str,
        spec: ModelSpec,
        parse: Parse = parse_head,
    ) -> Decoded:
        """Decode one body. `header_length` is the value of Inference-Header-Content-Length, None where it is absent.

        `model_id` stands for `spec` in what is remembered, so a changed spec needs a new one; `parse` stands in for
        `parse_head`. Raises `InvalidRequest`, and nothing else, for whatever a client may send.
        """
        size = len(body)
        if header_length is None:
            plan = parse(body, size, spec)
        elif (start := _length(header_length)) > size:
            raise InvalidRequest(
                f"Inference-Header-Content-Length: the inference header size should be in range (0, {size}), "
                f"got {show(header_length.strip())}"
            )
        elif start == 0:
            plan = plan_raw(size, spec)
        elif start > _MAX_CACHED_HEAD:
            plan = parse(memoryview(body)[:start], start, spec)
        else:
            key = (model_id, bytes(body[:start]))
            plan = self._plans.get(key) or self._parse(key, spec)
        if size != plan.size:
            plan.check_size(size)
        inputs = read_slots(plan.slots, body)
        if plan.arrays:
            inputs.update(plan.arrays)
        return Decoded(
            plan.id,
            inputs,
            plan.parameters.copy(),
            plan.outputs,
            plan.binary_default,
            plan.timeout_us,
            plan.rows,
            plan.shared,
        )

    def _parse(self, key: tuple[str, bytes], spec: ModelSpec) -> Plan:
        head = key[1]
        plan = parse_head(head, len(head), spec)
        if not plan.arrays:
            self._plans.put(key, plan)
        return plan


@lru_cache(256)  # clients repeat themselves, and this took longer than all else that is done with the header
def _length(text: str) -> int:
    digits = text.strip(" \t")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(
            f"Inference-Header-Content-Length must be the length of the JSON part in bytes, got {show(text)}"
        )
    return int(digits) if len(digits) < 20 else maxsize
