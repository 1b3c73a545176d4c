"""The `inputs` member of a request, checked against the model: JSON data become arrays, binary data become slots."""

from math import prod
from typing import Any, NamedTuple

from app.api.codec.binary import UNPACKERS, rows_as_bytes, unpack_rows
from app.api.codec.depth import check_depth
from app.api.codec.json import read_data
from app.api.codec.parameters import read_count, read_name, read_parameters
from app.api.codec.ranges import SharedInput, SharedRange, read_range
from app.api.codec.slots import Slot
from app.api.codec.wording import show, show_shape
from app.domain.errors import InvalidRequest
from app.domain.model import ModelSpec
from app.domain.tensors import NUMPY_DTYPES, Array, TensorSpec

_MEMBERS = ("name", "shape", "datatype", "parameters", "data")
_MAX_BYTES = 2**63 - 1


class _Announced(NamedTuple):
    """One input before its data: `datatype` and `sent` as on the wire, `shape` as the model sees it.

    The two shapes differ where BYTES comes as UINT8 with one more axis.
    """

    name: str
    datatype: str
    sent: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def rows_of_bytes(self) -> bool:
        return len(self.sent) != len(self.shape)


class Inputs(NamedTuple):
    """Those that came as JSON; where in the body, and where in shared memory the others are; and how many rows."""

    arrays: dict[str, Array]
    slots: tuple[Slot, ...]
    shared: tuple[SharedInput, ...]
    rows: int


def read_inputs(items: object, start: int, spec: ModelSpec) -> Inputs:
    """The inputs, of which binary ones lie in the body from byte `start` on.

    Raises `InvalidRequest` naming the input, what was expected and what was given.
    """
    if not isinstance(items, list):
        raise InvalidRequest(f"'inputs' must be an array, got {show(items)}")
    arrays: dict[str, Array] = {}
    slots: list[Slot] = []
    shared: list[SharedInput] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for index, entry in enumerate(items):
        item, name = read_name(entry, f"input {index}")
        check_depth(item, _MEMBERS, 3)
        announced = _announced(item, name, spec)
        if name in shapes:
            raise InvalidRequest(f"input {name!r} is given twice")
        shapes[name] = announced.shape
        source = _source(item, name)
        if source is None:
            arrays[name] = _json_array(item["data"], announced)
        elif isinstance(source, SharedRange):
            slot = _slot(announced, 0, source.byte_size, "shared_memory_byte_size")
            shared.append(SharedInput(source, slot))
        else:
            slots.append(_slot(announced, start, source, "binary_data_size"))
            start += source
    _check_complete(shapes, spec)
    return Inputs(arrays, tuple(slots), tuple(shared), spec.check_rows(shapes))


def _announced(item: dict[str, Any], name: str, spec: ModelSpec) -> _Announced:
    declared = spec.client_inputs_by_name.get(name)
    if declared is None:
        known = [each.name for each in spec.client_inputs]
        raise InvalidRequest(f"unexpected input {show(name)} for model {spec.name!r}: it takes {known}")
    rows_of_bytes = declared.datatype == "BYTES" and item.get("datatype") == "UINT8"
    datatype = "UINT8" if rows_of_bytes else declared.datatype
    if item.get("datatype") != datatype:
        raise InvalidRequest(
            f"input {name!r} of model {spec.name!r} has datatype {datatype}, "
            f"the request says {show(item.get('datatype'))}"
        )
    sent = _extents(item.get("shape"), name)
    shape = sent[:-1] if rows_of_bytes else sent
    if not declared.accepts(shape) or (rows_of_bytes and not sent):
        extra = ", as UINT8 with one more axis for the bytes of an element" if rows_of_bytes else ""
        raise InvalidRequest(
            f"unexpected shape for input {name!r} of model {spec.name!r}: expected {_wire_shape(declared)}{extra}, "
            f"got {show_shape(sent) if len(sent) <= 64 else f'{len(sent)} axes'}"
        )
    # Extents of 0 count as 1 here, because numpy refuses [0, 2⁶³] as well.
    if prod(max(extent, 1) for extent in sent) > _MAX_BYTES // NUMPY_DTYPES[datatype].itemsize:
        raise InvalidRequest(f"'shape' of input {name!r}: {show_shape(sent)} has more elements than can be addressed")
    if rows_of_bytes and sent[-1] == 0 and 0 not in shape:
        raise InvalidRequest(f"input {name!r}: shape {show_shape(sent)} of UINT8 leaves no bytes for an element")
    return _Announced(name, datatype, sent, shape)


def _extents(extents: object, name: str) -> tuple[int, ...]:
    if not isinstance(extents, list):
        raise InvalidRequest(f"'shape' of input {name!r} must be an array of whole numbers, got {show(extents)}")
    for extent in extents:
        if type(extent) is not int or extent < 0:
            raise InvalidRequest(f"'shape' of input {name!r} must hold non-negative whole numbers, got {show(extent)}")
    return tuple(extents)


def _source(item: dict[str, Any], name: str) -> int | SharedRange | None:
    """The `binary_data_size` of an input, its place in shared memory, or None for one that has `data`.

    Exactly one of them must be there.
    """
    where = f"input {name!r}"
    parameters = read_parameters(item, where)
    shared = read_range(parameters, where)
    given = ("data" in item) + ("binary_data_size" in parameters) + (shared is not None)
    if given != 1:
        raise InvalidRequest(
            f"{where} must have exactly one of 'data' and the parameters 'binary_data_size' and "
            f"'shared_memory_region'; {given or 'none'} of them {'are' if given else 'is'} given"
        )
    if shared is not None:
        return shared
    return None if "data" in item else read_count(parameters, "binary_data_size", where)


def _json_array(data: object, announced: _Announced) -> Array:
    array = read_data(data, announced.name, announced.datatype, announced.sent)
    return rows_as_bytes(array.tobytes(), announced.shape) if announced.rows_of_bytes else array


def _slot(announced: _Announced, start: int, size: int, parameter: str) -> Slot:
    name, datatype, sent, shape = announced
    count = prod(sent)
    if datatype == "BYTES":
        # Every element has a length in front: this bounds what an announced shape can make us allocate.
        fits, expected = size >= 4 * count, f"at least {4 * count}"
    else:
        nbytes = count * NUMPY_DTYPES[datatype].itemsize
        fits, expected = size == nbytes, str(nbytes)
    if not fits:
        raise InvalidRequest(
            f"input byte size mismatch for input {name!r}: shape {show_shape(sent)} of {datatype} takes {expected} "
            f"bytes, {parameter!r} is {size}"
        )
    unpack = unpack_rows if announced.rows_of_bytes else UNPACKERS.get(datatype)
    return Slot(name, NUMPY_DTYPES[datatype], shape, start, start + size, unpack)


def _check_complete(shapes: dict[str, tuple[int, ...]], spec: ModelSpec) -> None:
    missing = [declared.name for declared in spec.client_inputs if declared.name not in shapes]
    if missing:
        raise InvalidRequest(
            f"expected {len(spec.client_inputs)} inputs but got {len(shapes)} for model {spec.name!r}: "
            f"got {list(shapes)}, missing {missing}"
        )


def _wire_shape(declared: TensorSpec) -> str:
    return show_shape(-1 if axis == declared.batch_axis else extent for axis, extent in enumerate(declared.shape))
