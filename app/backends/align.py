"""Moving every block of a weights file to an aligned offset.

ONNX Runtime writes pre-packed blocks wherever the file happens to stand, maps them, and then reads them with
instructions that fault on unaligned addresses: sessions load without a word and the process dies at the first run.
"""

from pathlib import Path
from typing import BinaryIO

from onnx import ModelProto, TensorProto

from app.backends.graph import walk_tensors

#: Bytes. The widest vector register, and a cache line.
ALIGNMENT = 64

_COPY_BYTES = 1 << 24


def align_weights(model: ModelProto, weights: Path) -> None:
    """Rewrite the file `weights` so that every block begins at a multiple of `ALIGNMENT`; update `model` in place.

    A block is an initializer's own elements, or one packed buffer: `prepacked_N` entries read
    `key|offset;length;checksum[|offset;length;checksum…]`. Everything external in `model` has to lie in that file.
    """
    aligned = weights.with_suffix(".aligned")
    with weights.open("rb") as source, aligned.open("wb") as target:
        mover = _Mover(source, target)
        for tensor in walk_tensors(model):
            if tensor.data_location == TensorProto.EXTERNAL:
                _move_tensor(tensor, mover)
    aligned.replace(weights)


class _Mover:
    """Appends blocks of one file to another, aligned; a block that two tensors share is written once."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._source = source
        self._target = target
        self._moved: dict[tuple[int, int], int] = {}

    def move(self, offset: int, length: int) -> int:
        """Copy one block; returns its new offset."""
        block = (offset, length)
        if block not in self._moved:
            self._target.write(bytes(-self._target.tell() % ALIGNMENT))
            self._moved[block] = self._target.tell()
            self._source.seek(offset)
            while length > 0:
                chunk = self._source.read(min(length, _COPY_BYTES))
                if not chunk:
                    raise OSError(f"{self._source.name}: a block ends after the end of the file")
                length -= self._target.write(chunk)
        return self._moved[block]


def _move_tensor(tensor: TensorProto, mover: _Mover) -> None:
    length = next(int(entry.value) for entry in tensor.external_data if entry.key == "length")
    for entry in tensor.external_data:
        if entry.key == "offset":
            entry.value = str(mover.move(int(entry.value), length))
        elif entry.key.startswith("prepacked"):  # a weight that two kinds of node use has one such key twice
            name, *blocks = entry.value.split("|")
            entry.value = "|".join([name, *(_move_block(block, mover) for block in blocks)])


def _move_block(block: str, mover: _Mover) -> str:
    offset, length, checksum = block.split(";")
    return f"{mover.move(int(offset), int(length))};{length};{checksum}"
