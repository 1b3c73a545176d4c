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

#: Higher levels take several times as long for a few per cent.
_LEVEL = 1


def decompress(body: Buffer, coding: str, most: int) -> bytes:
    """The plain body, of at most `most` bytes: no more than that is ever unpacked.

    Without the interpreter for most of the time. Raises `PayloadTooLarge`, or `InvalidRequest` for a stream that is
    malformed, that ends too early, or that something follows.
    """
    stream = zlib.decompressobj(DECODERS[coding])
    try:
        plain = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {coding}: {error}") from None
    if len(plain) > most:
        raise PayloadTooLarge(f"the decompressed body has more than {most} bytes, the most that is taken")
    if not stream.eof:
        raise InvalidRequest(f"the {coding} body ends before its end")
    if stream.unused_data:
        raise InvalidRequest(f"{len(stream.unused_data)} bytes follow the end of the {coding} body")
    return plain


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
