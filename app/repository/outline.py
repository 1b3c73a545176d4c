"""What a graph takes and gives, read from an ONNX file without its nodes and weights.

Parsing a whole file holds the interpreter for as long as copying its weights takes. Here they are stepped over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # it comes without types
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto, ValueInfoProto

#: Bytes. A key and a length are two numbers of at most ten bytes.
_LONGEST_HEAD = 20

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass
class Outline:
    """`inputs` and `outputs` in the order of the file; `constants` are the names of the initializers."""

    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)


def read_outline(model_file: Path) -> Outline:
    """Raises `DecodeError` for what is no ONNX file, and `OSError`."""
    outline = Outline()
    with model_file.open("rb") as file:
        whole = range(file.seek(0, 2))
        for graph in _fields(file, whole, ModelProto.GRAPH_FIELD_NUMBER):
            _read_graph(file, graph[1], outline)
    return outline


def _read_graph(file: BinaryIO, graph: range, outline: Outline) -> None:
    wanted = (
        GraphProto.INPUT_FIELD_NUMBER,
        GraphProto.OUTPUT_FIELD_NUMBER,
        GraphProto.INITIALIZER_FIELD_NUMBER,
        GraphProto.SPARSE_INITIALIZER_FIELD_NUMBER,
    )
    for number, value in _fields(file, graph, *wanted):
        if number == GraphProto.INPUT_FIELD_NUMBER:
            outline.inputs.append(ValueInfoProto.FromString(_content(file, value)))
        elif number == GraphProto.OUTPUT_FIELD_NUMBER:
            outline.outputs.append(ValueInfoProto.FromString(_content(file, value)))
        elif number == GraphProto.INITIALIZER_FIELD_NUMBER:
            outline.constants.add(_tensor_name(file, value))
        else:
            for _, tensor in _fields(file, value, SparseTensorProto.VALUES_FIELD_NUMBER):
                outline.constants.add(_tensor_name(file, tensor))


def _tensor_name(file: BinaryIO, tensor: range) -> str:
    names = [_content(file, name) for _, name in _fields(file, tensor, TensorProto.NAME_FIELD_NUMBER)]
    return names[-1].decode(errors="replace") if names else ""


def _fields(file: BinaryIO, message: range, *wanted: int) -> Iterator[tuple[int, range]]:
    """Number and place of the wanted fields of a message, all of which are strings, bytes or messages."""
    position = message.start
    while position < message.stop:
        file.seek(position)
        head = file.read(min(_LONGEST_HEAD, message.stop - position))
        key, used = _varint(head, 0)
        number, kind = key >> 3, key & 7
        if not number:
            raise DecodeError(f"field 0 at byte {position}")
        if kind == _BYTES:
            length, used = _varint(head, used)
        elif kind == _VARINT:
            length, used = 0, _varint(head, used)[1]
        elif kind in (_FIXED_64, _FIXED_32):
            length = 8 if kind == _FIXED_64 else 4
        else:
            raise DecodeError(f"wire type {kind} at byte {position}")
        start, position = position + used, position + used + length
        if position > message.stop:
            raise DecodeError(f"field {number} ends after the message that it is in, at byte {message.stop}")
        if kind == _BYTES and number in wanted:
            yield number, range(start, position)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that begins at `position`, and where it ends."""
    value = 0
    for index, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise DecodeError("a number without an end")


def _content(file: BinaryIO, place: range) -> bytes:
    file.seek(place.start)
    return file.read(len(place))
