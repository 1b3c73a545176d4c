"""The decoder under libFuzzer, which looks for inputs that reach new lines: `make soak` runs it.

    python -m tests.fuzz.decoder CORPUS [-max_total_time=600 …]

The first byte of an input chooses what the header says of the JSON part's length, the rest is the body. Whatever it is,
it must be decoded, encoded again, or be refused with `InvalidRequest`; anything else is a crash, kept in a file.
"""

import os
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["app"]):
    from app.api.codec.reply import Encoder
    from app.api.codec.request import Decoder
    from app.domain.errors import InvalidRequest

from tests.api.malformed import MALFORMED, MODEL, VALID, VALID_BINARY
from tests.fuzz.mutations import mutated

DECODER, ENCODER = Decoder(remembered=64), Encoder(remembered=64)

#: What an input's first byte stands for: no header, the length given in its next two bytes, or one of these.
LENGTHS = ("0", "-1", "9" * 20, "abc")


def lengths(data: bytes) -> tuple[str | None, bytes]:
    """Header and body of an input."""
    kind, rest = (data[0], data[1:]) if data else (0, b"")
    if kind < 96:
        return None, rest
    if kind < 240:
        return str(int.from_bytes(rest[:2], "big")), rest[2:]
    return LENGTHS[kind % len(LENGTHS)], rest


def as_input(header_length: str | None, body: bytes) -> bytes:
    """The input that stands for a request, as far as there is one."""
    if header_length is None or not header_length.isdecimal() or int(header_length) > 65535:
        return b"\0" + body
    return b"\x80" + int(header_length).to_bytes(2, "big") + body


def run(data: bytes) -> None:
    """One input."""
    header_length, body = lengths(data)
    try:
        decoded = DECODER.decode(body, header_length, "four@1", MODEL)
    except InvalidRequest:
        return
    if decoded.shared is not None:
        return  # where it lies is another's business
    names = {each.name: into.name for each, into in zip(MODEL.client_outputs, MODEL.client_inputs, strict=True)}
    outputs = {name: decoded.inputs[into] for name, into in names.items()}
    try:
        ENCODER.encode(decoded, "four@1", MODEL, outputs)
    except InvalidRequest:
        return


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """The next input: as libFuzzer makes it of another, or, one in four, a request that is almost right."""
    if seed % 4:
        return bytes(atheris.Mutate(data, max_size))
    wire = mutated(random.Random(seed))
    header_length = next((v.decode() for k, v in wire.headers if k == b"inference-header-content-length"), None)
    return as_input(header_length, wire.body)[:max_size]


def main() -> None:
    """Sow what is known to be interesting, then fuzz until libFuzzer is told to end."""
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    known = [
        (None, VALID),
        (VALID_BINARY[1], VALID_BINARY[0]),
        *[(each.header_length, each.body) for each in MALFORMED],
    ]
    for index, (header_length, body) in enumerate(known):
        if len(body) <= 4096:
            (corpus / f"known-{index}").write_bytes(as_input(header_length, body))
    os.environ.setdefault("PYTHONHASHSEED", "0")
    atheris.Setup(sys.argv, run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
