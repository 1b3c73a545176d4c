"""Tensor data as JSON, both ways: `data` as clients write it, and as replies carry it.

Coming in, `data` is a flat list, or nested exactly as the shape. BOOL takes true and false; integers take whole
numbers in range, exact to 64 bits; FP16, BF16, FP32 and FP64 take numbers, rounded to the nearest value of the type,
and the strings "NaN", "Infinity" and "-Infinity"; BYTES takes strings, as their UTF-8 bytes.
Going out, `data` is flat. FP16 and BF16 are written as the exact value, FP32 as the shortest number that reads back as
the same FP32, NaN and the infinities as those strings, BYTES as strings if they are UTF-8.
"""

from collections.abc import Mapping
from itertools import chain
from math import inf, nan, prod
from typing import Any

import numpy as np

from app.api.codec.dtypes import narrow, widen
from app.api.codec.wording import show, show_shape
from app.domain.errors import InvalidRequest
from app.domain.tensors import NUMPY_DTYPES, Array

_FLOATS = frozenset({"FP16", "BF16", "FP32", "FP64"})
_NONFINITE: Mapping[str, float] = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
_NUMBERS = frozenset({int, float})


def read_data(data: object, name: str, datatype: str, shape: tuple[int, ...]) -> Array:
    """The tensor that input `name` gives as JSON `data`. Raises `InvalidRequest` naming the input."""
    flat = _flatten(data, name, shape)
    if len(flat) != prod(shape):
        raise InvalidRequest(
            f"input {name!r}: shape {show_shape(shape)} needs {prod(shape)} elements in 'data', got {len(flat)}"
        )
    # One pass in C over the types: numpy alone would take true for 1 and "3" for 3.
    kinds = set(map(type, flat))
    if datatype in _FLOATS:
        array = _read_floats(flat, kinds, name, datatype)
    elif datatype == "BYTES":
        _require(kinds, {str}, flat, name, "a string (BYTES)")
        array = object_array([text.encode() for text in flat])
    elif datatype == "BOOL":
        _require(kinds, {bool}, flat, name, "true or false (BOOL)")
        array = np.array(flat, np.bool_)
    else:
        _require(kinds, {int}, flat, name, f"a whole number ({datatype})")
        array = _read_integers(flat, name, datatype)
    return array.reshape(shape)


def write_data(array: Array, name: str, datatype: str) -> Array | list[Any]:
    """The elements of output `name` in row-major order, as orjson writes them with `OPT_SERIALIZE_NUMPY`.

    Raises `InvalidRequest` for BYTES that are not UTF-8.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if datatype == "BYTES":
        return _write_bytes(flat.tolist(), name)
    if datatype not in _FLOATS:
        return flat
    flat = widen(flat, datatype)
    finite = np.isfinite(flat)
    if finite.all():
        return flat
    return [value if ok else _nonfinite_name(value) for value, ok in zip(flat, finite.tolist(), strict=True)]


def object_array(elements: list[bytes]) -> Array:
    """A one-dimensional object array of these elements (`np.array` would make fixed-width strings of them)."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def _flatten(data: object, name: str, shape: tuple[int, ...]) -> list[Any]:
    if not shape and not isinstance(data, list):
        return [data]
    if not isinstance(data, list):
        raise InvalidRequest(f"input {name!r}: 'data' must be an array, got {show(data)}")
    if len(shape) < 2 or not data or not isinstance(data[0], list):
        return data
    level: list[Any] = [data]
    for axis, extent in enumerate(shape):
        if not set(map(type, level)) <= {list} or not set(map(len, level)) <= {extent}:
            raise InvalidRequest(
                f"input {name!r}: 'data' is nested, but not as shape {show_shape(shape)} says: "
                f"expected arrays of {extent} along axis {axis}; a flat array is accepted too"
            )
        level = list(chain.from_iterable(level))
    return level


def _read_floats(flat: list[Any], kinds: set[type], name: str, datatype: str) -> Array:
    if str in kinds:
        flat = [_NONFINITE.get(item, item) if isinstance(item, str) else item for item in flat]
        kinds = set(map(type, flat))
    _require(kinds, _NUMBERS, flat, name, f'a number, "NaN", "Infinity" or "-Infinity" ({datatype})')
    wide = np.array(flat, np.float64)
    array = narrow(wide, datatype)
    # JSON numbers are finite, so an infinity that is not in `wide` is a value out of range.
    lost = np.isinf(widen(array, datatype)) & np.isfinite(wide)
    if lost.any():
        index = int(lost.argmax())
        raise InvalidRequest(f"input {name!r}: element {index} of 'data' is {flat[index]}, out of range for {datatype}")
    return array


def _read_integers(flat: list[int], name: str, datatype: str) -> Array:
    try:
        return np.array(flat, NUMPY_DTYPES[datatype])
    except OverflowError:
        limits = np.iinfo(NUMPY_DTYPES[datatype])
        index = next(i for i, item in enumerate(flat) if not limits.min <= item <= limits.max)
        raise InvalidRequest(
            f"input {name!r}: element {index} of 'data' is {flat[index]}, out of range for {datatype} "
            f"({limits.min} to {limits.max})"
        ) from None


def _require(kinds: set[type], allowed: frozenset[type] | set[type], flat: list[Any], name: str, what: str) -> None:
    if not kinds <= allowed:
        index = next(i for i, item in enumerate(flat) if type(item) not in allowed)
        raise InvalidRequest(f"input {name!r}: element {index} of 'data' must be {what}, got {show(flat[index])}")


def _write_bytes(elements: list[bytes], name: str) -> list[str]:
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output {name!r} holds bytes that are not UTF-8, which JSON cannot carry: ask for it with the output "
            "parameter binary_data: true"
        ) from None


def _nonfinite_name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
