"""Tensor data as bytes, both ways: little-endian, row-major; BYTES elements behind their 4-byte length.

Never compiled: plain Python lets other threads run between any two of a million elements, and compiled code none.
"""

from collections.abc import Mapping
from struct import Struct

import numpy as np

from app.api.codec.json import object_array
from app.api.codec.slots import Slot, Unpack
from app.api.exchange import Buffer
from app.domain.errors import InvalidRequest
from app.domain.tensors import Array

_LENGTH = Struct("<I")


def unpack_bool(body: Buffer, slot: Slot) -> Array:
    """BOOL, one byte an element: 0 is false and all else is true, as in C. perf_analyzer sends random bytes.

    A copy with 0 and 1: numpy and native code would carry other values along and compute nonsense with them.
    """
    truth: Array = np.ndarray(slot.shape, np.uint8, body, slot.start) != 0
    return truth


def unpack_bytes(body: Buffer, slot: Slot) -> Array:
    """BYTES: per element a little-endian 4-byte length, then so many bytes."""
    name, _, shape, position, stop, _ = slot
    count = int(np.prod(shape, dtype=np.int64))
    elements: list[bytes] = []
    for index in range(count):
        if position + 4 > stop:
            raise InvalidRequest(
                f"input {name!r}: unexpected number of string elements: expected {count}, the data ends after {index}"
            )
        (length,) = _LENGTH.unpack_from(body, position)
        position += 4
        if length > stop - position:
            raise InvalidRequest(
                f"input {name!r}: element {index} claims {length} bytes, but only {stop - position} are left"
            )
        elements.append(bytes(body[position : position + length]))
        position += length
    if position != stop:
        raise InvalidRequest(f"input {name!r}: {stop - position} bytes are left over after {count} elements")
    return object_array(elements).reshape(shape)


def unpack_rows(body: Buffer, slot: Slot) -> Array:
    """BYTES sent as UINT8 with one more axis: the bytes of equally long elements, one after the other."""
    return rows_as_bytes(bytes(body[slot.start : slot.stop]), slot.shape)


def unpack_whole(body: Buffer, slot: Slot) -> Array:
    """BYTES of a raw request: the body is the one element."""
    return object_array([bytes(body[slot.start : slot.stop])]).reshape(slot.shape)


def rows_as_bytes(raw: bytes, shape: tuple[int, ...]) -> Array:
    """`raw`, cut into equally long elements, as many as `shape` has."""
    count = int(np.prod(shape, dtype=np.int64))
    length = len(raw) // max(count, 1)
    return object_array([raw[i * length : (i + 1) * length] for i in range(count)]).reshape(shape)


#: The datatypes whose elements are not simply their bytes.
UNPACKERS: Mapping[str, Unpack] = {"BOOL": unpack_bool, "BYTES": unpack_bytes}


def pack(array: Array) -> Buffer:
    """An output as it goes on the wire; no copy of a C-contiguous tensor."""
    if array.dtype.hasobject:
        return b"".join([part for element in array.flat for part in (_LENGTH.pack(len(element)), element)])
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
