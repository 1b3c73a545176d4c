"""Large answers in slices: however much a socket takes, nobody writes for long in a row."""

from collections.abc import Iterator, Sequence

from app.api.exchange import Buffer

#: What is written of an answer in one turn of the event loop, about 0.1 ms. A socket takes megabytes at once, and
#: several are served in a turn.
SLICE_BYTES = 262_144


def slices(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    """The bytes of the buffers in order, as views of at most `SLICE_BYTES` of one buffer each."""
    for buffer in buffers:
        if len(buffer):  # an empty view may have a shape that cannot be cast
            view = memoryview(buffer).cast("B")
            for start in range(0, len(view), SLICE_BYTES):
                yield view[start : start + SLICE_BYTES]


class LargeAnswer:
    """What is left to write of an answer of `size` bytes, after which the connection `ends` or not."""

    __slots__ = ("_slices", "ends", "left", "size")

    def __init__(self, buffers: Sequence[Buffer], size: int, *, ends: bool) -> None:
        self.size = self.left = size
        self.ends = ends
        self._slices = slices(buffers)

    def take(self) -> memoryview:
        """The next slice."""
        piece = next(self._slices)
        self.left -= len(piece)
        return piece
