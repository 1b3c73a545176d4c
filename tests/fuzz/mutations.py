"""Inference requests that are almost right: valid ones, changed at random in a few places. Everything follows a seed.

They are addressed to the model of `tests.api.malformed`, which is called `four`.
"""

import copy
import gzip
import json
import random
import zlib
from typing import Any, NamedTuple

from tests.api.malformed import VALID, VALID_BINARY

WORDS = [
    "inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data", "binary_data_size", "binary_data",
    "binary_data_output", "classification", "timeout", "priority", "sequence_id", "sequence_start", "headers",
    "triton_x", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "explain", "r", "x", "s",
    "k", "b", "y", "t", "l", "c", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES", "NaN", "Infinity", "-Infinity", "", "é", "\U0001f600", "\0",
]  # fmt: skip

NUMBERS = [
    0, 1, 2, 3, 12, -1, -0.0, 0.5, 1e300, -1e-300, 255, 256, 65504, 65536, 2**31, 2**32 - 1, 2**53 + 1, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40,
]  # fmt: skip

LENGTHS = ["", "0", "-1", "+1", "abc", "1e3", "1_0", "\u00b2", "9" * 20, "1" * 400, " 12 ", "2147483648"]

CODINGS = ["gzip", "deflate", "x-gzip", "identity", "br", "gzip, gzip", "", "GZIP"]

TIMEOUTS = ["0", "1", "5", "100000", "-1", "1.5", "soon", "9" * 30, ""]


#: Headers that have nothing to do with the body: name, how often they come, values.
OTHERS = [
    ("x-request-timeout-ms", 0.05, TIMEOUTS),
    ("x-envoy-expected-rq-timeout-ms", 0.05, TIMEOUTS),
    ("accept-encoding", 0.2, ["gzip", "deflate;q=0.5", "*", "gzip;q=x", "br", "identity"]),
    ("x-request-id", 0.1, ["mine", "", "\xff", "x" * 1000]),
]


class Wire(NamedTuple):
    """One request: its header lines, and its body in the pieces in which it comes."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    announced: bool
    """Whether it has a Content-Length; otherwise it comes in chunks."""


def mutated(rng: random.Random) -> Wire:
    """The next request."""
    document, blobs = _base(rng)
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2, 2, 3, 5])):
        document = _changed(rng, document)
    head = json.dumps(document, ensure_ascii=rng.random() < 0.5, allow_nan=True).encode("utf-8", "surrogatepass")
    binary = blobs or rng.random() < 0.1
    length = str(len(head)) if binary else None
    body = head + blobs
    if rng.random() < 0.25:
        body = _damaged(rng, body)
    if rng.random() < 0.15:
        length = rng.choice([None, *LENGTHS, str(len(head) + rng.randint(-9, 9)), str(len(body)), str(len(body) + 1)])
    headers = [] if length is None else [("inference-header-content-length", length)]
    if rng.random() < 0.03:
        headers.append(("inference-header-content-length", "1"))
    body = _coded(rng, headers, body)
    headers += [(name, rng.choice(values)) for name, often, values in OTHERS if rng.random() < often]
    return Wire(tuple((k.encode(), v.encode("utf-8")) for k, v in headers), body, rng.random() < 0.8)


def _base(rng: random.Random) -> tuple[Any, bytes]:
    document = json.loads(VALID)
    blobs = b""
    if rng.random() < 0.5:
        body, length = VALID_BINARY
        document, blobs = json.loads(body[: int(length)]), body[int(length) :]
    if rng.random() < 0.4:
        names = rng.sample(["y", "t", "l", "c"], rng.randint(1, 4))
        document["outputs"] = [{"name": name, "parameters": _output_parameters(rng)} for name in names]
    if rng.random() < 0.3:
        document["parameters"] = rng.choice(
            [{"binary_data_output": True}, {"timeout": 5}, {"explain": True}, {"priority": 1, "a": "b"}]
        )
    if rng.random() < 0.2 and not blobs:
        item = rng.choice(document["inputs"])
        del item["data"]
        item["parameters"] = _range(rng, rng.choice([12, 9, 2, 1]))
    return document, blobs


def _output_parameters(rng: random.Random) -> dict[str, Any]:
    return rng.choice([{}, {"binary_data": True}, {"binary_data": False}, {"classification": 2}, _range(rng, 64)])


def _range(rng: random.Random, size: int) -> dict[str, Any]:
    given = {"shared_memory_region": rng.choice(["r", "r", "r", "shrunk", "missing"]), "shared_memory_byte_size": size}
    if rng.random() < 0.3:
        given["shared_memory_offset"] = rng.choice([0, 1, 8, 63, 64, 2**62, 2**63 - 1, 2**64 - size])
    return given


def _changed(rng: random.Random, document: Any) -> Any:
    """The document with one place in it changed."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    if not places:
        return _value(rng)
    owner, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, list):
        owner.insert(rng.randint(0, len(owner)), copy.deepcopy(owner[key]))
    elif kind == 2 and isinstance(owner, dict):
        owner[rng.choice(WORDS)] = owner.pop(key) if rng.random() < 0.5 else _value(rng)
    elif kind == 3:
        other, place = rng.choice(places)
        owner[key] = copy.deepcopy(other[place])
    elif kind == 4 and rng.random() < 0.05:
        owner[key] = _deep(rng)
    else:
        owner[key] = _value(rng)
    return document


def _places(value: Any) -> Any:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _places(inner)


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(WORDS)
    if kind == 5:
        return rng.choice([None, True, False, float("nan"), float("inf"), "\ud800"])
    if kind == 6:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {rng.choice(WORDS): _value(rng, depth + 1) for _ in range(rng.randrange(4))}


def _deep(rng: random.Random) -> Any:
    value: Any = 0
    for _ in range(rng.choice([50, 99, 100, 101, 120])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _damaged(rng: random.Random, body: bytes) -> bytes:
    if not body:
        return bytes(rng.randrange(9))
    at = rng.randrange(len(body))
    end = min(len(body), at + rng.randint(1, 16))
    return rng.choice([
        body[:at],
        body[at:],
        body[:at] + body[end:],
        body[:at] + body[at:end] * 2 + body[end:],
        body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :],
        body[:at] + rng.randbytes(end - at) + body[end:],
        body + rng.randbytes(rng.randint(1, 16)),
        b"",
    ])  # fmt: skip


def _coded(rng: random.Random, headers: list[tuple[str, str]], body: bytes) -> bytes:
    """The body in a content coding, now and then not in that which the header names, or damaged."""
    if rng.random() > 0.2:
        return body
    if rng.random() < 0.05:
        body = bytes(rng.choice([1 << 16, 1 << 20]))  # it shrinks to a thousandth
    coding = rng.choice(CODINGS)
    headers.append(("content-encoding", coding))
    if "gzip" in coding:
        body = gzip.compress(body, 1)
    elif coding == "deflate":
        body = zlib.compress(body)
    return _damaged(rng, body) if rng.random() < 0.3 else body
