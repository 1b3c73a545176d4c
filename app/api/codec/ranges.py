"""Tensors in shared memory: what a request says of them, and the copies that are made of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.api.codec.slots import Slot, read_slots
from app.api.codec.wording import show
from app.api.exchange import Buffer
from app.domain.errors import InvalidRequest
from app.domain.tensors import Array
from app.runtime.shared_memory import Region

_REGION, _OFFSET, _BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


class SharedRange(NamedTuple):
    """A piece of a registered region, in bytes. Not yet checked against it."""

    region: str
    offset: int
    byte_size: int


class SharedInput(NamedTuple):
    """An input whose bytes are there; `slot` says what they hold, from byte 0 of the range on."""

    place: SharedRange
    slot: Slot


class Shared(NamedTuple):
    """All that one request has in shared memory. Never without anything."""

    inputs: tuple[SharedInput, ...]
    outputs: tuple[SharedRange, ...]

    @property
    def regions(self) -> list[str]:
        """The names of the regions."""
        return [place.region for place in self._places()]

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs."""
        return sum(each.place.byte_size for each in self.inputs)

    def check(self, regions: Mapping[str, Region]) -> None:
        """Raise `InvalidRequest` for a range that is not within its region."""
        for place in self._places():
            regions[place.region].check(place.offset, place.byte_size)

    def read(self, regions: Mapping[str, Region]) -> dict[str, Array]:
        """The inputs, copied: what the client writes from now on changes nothing. Raises `InvalidRequest`."""
        arrays: dict[str, Array] = {}
        for (region, offset, size), slot in self.inputs:
            arrays.update(read_slots((slot,), regions[region].read(offset, size)))
        return arrays

    def _places(self) -> list[SharedRange]:
        return [*[each.place for each in self.inputs], *self.outputs]


def read_range(parameters: dict[str, Any], where: str) -> SharedRange | None:
    """Consume the parameters that place a tensor in shared memory, None where there are none."""
    given = [key for key in parameters if "shared_memory" in key]
    if not given:
        return None
    region = parameters.pop(_REGION, None)
    if not isinstance(region, str):
        raise InvalidRequest(f"parameter {_REGION!r} of {where} must be the name of a region, got {show(region)}")
    if _BYTE_SIZE not in parameters:
        raise InvalidRequest(f"{where} is in shared memory, but has no parameter {_BYTE_SIZE!r}")
    offset, byte_size = [_count(parameters, key, where) for key in (_OFFSET, _BYTE_SIZE)]
    for key in given:
        if key in parameters:
            raise InvalidRequest(f"parameter {show(key)} of {where} is unknown")
    return SharedRange(region, offset, byte_size)


def write_range(regions: Mapping[str, Region], place: SharedRange, name: str, data: Buffer) -> dict[str, Any]:
    """Put output `name` where the request wants it; the parameters that say so. Raises `InvalidRequest`."""
    if len(data) > place.byte_size:
        raise InvalidRequest(
            f"output {name!r} has {len(data)} bytes: {_BYTE_SIZE!r} of the request leaves it {place.byte_size}"
        )
    regions[place.region].write(place.offset, data)
    offset = {_OFFSET: place.offset} if place.offset else {}
    return {_REGION: place.region, **offset, _BYTE_SIZE: len(data)}


def _count(parameters: dict[str, Any], key: str, where: str) -> int:
    value = parameters.pop(key, 0)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"parameter {key!r} of {where} must be a non-negative whole number, got {show(value)}")
    return value
