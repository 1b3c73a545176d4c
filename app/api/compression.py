"""Compressed bodies, both ways: gzip, and deflate, which by the standard of HTTP means zlib's format."""

import zlib
from collections.abc import Mapping, Sequence

from app.api.exchange import Buffer
from app.domain.errors import InvalidRequest, PayloadTooLarge

#: Content codings that are read → zlib's name for the format.
DECODERS: Mapping[str, int] = {"gzip": 31, "x-gzip": 31, "deflate": 15}

#: Content codings that are written, the preferred one first.
ENCODERS: Mapping[str, int] = {"gzip": 31, "deflate": 15}

#: Smaller answers are not worth it at either end.
MIN_COMPRESSED = 1024

#: So much of an answer is tried: tensors of floats hardly shrink, and trying them whole costs a second per 50 MB.
_SAMPLE = 16_384

#: So much of a packed body is given to zlib at once: what it leaves over is copied each time.
_FED = 1 << 18

#: Higher levels take several times as long for a few per cent.
_LEVEL = 1


class Inflater:
    """Unpacks a body piece by piece, so that its size is known, and can be refused, before there is more of it.

    One thread at a time; mostly without the interpreter. `plain` is what was unpacked so far.
    """

    def __init__(self, body: Buffer, coding: str, most: int) -> None:
        self._coding = coding
        self._most = most
        self._stream = zlib.decompressobj(DECODERS[coding])
        self._packed = memoryview(body)
        self.plain = bytearray()

    def more(self, room: int) -> bool:
        """Unpack up to `room` bytes more; whether that was all.

        Raises `PayloadTooLarge`, or `InvalidRequest` for a stream that is malformed, that ends too early, or that
        something follows.
        """
        stream, end = self._stream, len(self.plain) + room
        while len(self.plain) < end and not stream.eof:
            packed: Buffer = stream.unconsumed_tail
            if not packed:
                packed, self._packed = self._packed[:_FED], self._packed[_FED:]
            try:
                piece = stream.decompress(packed, end - len(self.plain))
            except zlib.error as error:
                raise InvalidRequest(f"the body is not {self._coding}: {error}") from None
            if not piece and not packed and not stream.eof:
                raise InvalidRequest(f"the {self._coding} body ends before its end")
            self.plain += piece
        if len(self.plain) > self._most:
            raise PayloadTooLarge(f"the decompressed body has more than {self._most} bytes, the most that is taken")
        if stream.eof and (follows := len(stream.unused_data) + len(self._packed)):
            raise InvalidRequest(f"{follows} bytes follow the end of the {self._coding} body")
        return stream.eof


def choose(accept: bytes) -> str | None:
    """The coding that an Accept-Encoding header likes best, None for none."""
    weights: dict[str, float] = {}
    for item in accept.decode("latin-1").lower().split(","):
        name, _, parameter = item.partition(";")
        weights[name.strip()] = _weight(parameter)
    best, best_weight = None, 0.0
    for name in ENCODERS:
        weight = weights.get(name, weights.get("*", 0.0))
        if weight > best_weight:
            best, best_weight = name, weight
    return best if best_weight >= weights.get("identity", 0.0) else None


def worth_compressing(buffers: Sequence[Buffer]) -> bool:
    """Whether an answer is large enough to be compressed; most are not, whatever their clients accept."""
    return sum(map(len, buffers)) >= MIN_COMPRESSED


def compress(buffers: Sequence[Buffer], coding: str) -> list[Buffer] | None:
    """An answer compressed, None where that does not make it a tenth smaller. Mostly without the interpreter."""
    if not worth_compressing(buffers):
        return None
    sample = memoryview(max(buffers, key=len)).cast("B")[:_SAMPLE]
    if len(zlib.compress(sample, _LEVEL)) > 0.9 * len(sample):
        return None
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, ENCODERS[coding])
    return [b"".join([*map(stream.compress, buffers), stream.flush()])]


def _weight(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
