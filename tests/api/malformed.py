"""Requests that must be refused with 400, as bytes: one table for the codec and for a server behind a socket.

They are addressed to `MODEL`: four batched inputs, each handed on unchanged as an output, so that any server can
build it from four Identity nodes: `x` FP32 [-1,3] → `y`, `s` BYTES [-1,2] → `t`, `k` INT8 [-1,2] → `l`, `b` BOOL
[-1] → `c`. A request is a body and the value of Inference-Header-Content-Length (None: no such header); `names` is
what the error message must contain. `VALID` and `VALID_BINARY` are requests that the same model accepts.
"""

import json
from copy import deepcopy
from typing import Any, NamedTuple

from app.domain.model import ModelSpec, Variant
from app.domain.tensors import TensorSpec

_INPUTS = (
    TensorSpec("x", "FP32", (-1, 3), 0),
    TensorSpec("s", "BYTES", (-1, 2), 0),
    TensorSpec("k", "INT8", (-1, 2), 0),
    TensorSpec("b", "BOOL", (-1,), 0),
)
_OUTPUTS = (
    TensorSpec("y", "FP32", (-1, 3), 0),
    TensorSpec("t", "BYTES", (-1, 2), 0),
    TensorSpec("l", "INT8", (-1, 2), 0),
    TensorSpec("c", "BOOL", (-1,), 0),
)
MODEL = ModelSpec("four", _INPUTS, _OUTPUTS, (Variant("default", (1, 2), {}),), _INPUTS, _OUTPUTS)


_RANGE = {"shared_memory_region": "r", "shared_memory_byte_size": 12}


class Malformed(NamedTuple):
    """One request that must be refused, and what the refusal must name."""

    name: str
    body: bytes
    header_length: str | None
    names: str


_X = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 0.5, 1]}
_S = {"name": "s", "datatype": "BYTES", "shape": [1, 2], "data": ["", "é"]}
_K = {"name": "k", "datatype": "INT8", "shape": [1, 2], "data": [-128, 127]}
_B = {"name": "b", "datatype": "BOOL", "shape": [1], "data": [True]}
_BLOBS = {"x": bytes(12), "s": b"\0\0\0\0\1\0\0\0a", "k": b"\x80\x7f", "b": b"\1"}

VALID = json.dumps({"inputs": [_X, _S, _K, _B]}).encode()


def _request(**members):
    """A valid request with some top-level members set."""
    return {"inputs": [deepcopy(item) for item in (_X, _S, _K, _B)], **members}


def _with(name, /, drop=(), **members):
    """A valid request with some members of input `name` set, and some left out."""
    document = _request()
    (item,) = (item for item in document["inputs"] if item["name"] == name)
    item.update(members)
    for key in drop:
        del item[key]
    return document


def _output(**members):
    """A valid request for output `y` with some members of it set."""
    return _request(outputs=[{"name": "y", **members}])


def _empty():
    """A request of no rows."""
    document = _request()
    for item in document["inputs"]:
        item.update(shape=[0, *item["shape"][1:]], data=[])
    return document


def _sized(name, size, **members):
    """A valid request whose input `name` announces `size` bytes after the JSON."""
    return _with(name, drop=("data",), parameters={"binary_data_size": size}, **members)


def _case(name, document, names):
    return Malformed(name, document if isinstance(document, bytes) else json.dumps(document).encode(), None, names)


def _behind(name, document, blob, names):
    """A request with bytes behind its JSON."""
    head = json.dumps(document).encode()
    return Malformed(name, head + blob, str(len(head)), names)


def binary_request() -> tuple[bytes, str]:
    """A valid request with all four tensors in binary, and its header length."""
    document: dict[str, Any] = _request()
    for item in document["inputs"]:
        del item["data"]
        item["parameters"] = {"binary_data_size": len(_BLOBS[item["name"]])}
    head = json.dumps(document).encode()
    return head + b"".join(_BLOBS[item["name"]] for item in document["inputs"]), str(len(head))


VALID_BINARY = binary_request()

_HEADER = [
    Malformed(f"header length {text[:24]!r}", VALID, text, names)
    for text, names in [
        ("", "Inference-Header-Content-Length"),
        ("abc", "Inference-Header-Content-Length"),
        ("-1", "'-1'"),
        ("+1", "'+1'"),
        ("1e3", "'1e3'"),
        ("1_0", "'1_0'"),
        ("12, 12", "'12, 12'"),
        ("99999999999999999999", "99999999999999999999"),
        ("9" * 500, "Inference-Header-Content-Length"),
        (str(len(VALID) + 1), f"(0, {len(VALID)})"),
        (str(len(VALID) - 1), "JSON"),
        ("1", "JSON"),
        ("0", "exactly one input"),
    ]
]

_DOCUMENTS = [
    _case("empty body", b"", "JSON"),
    _case("no JSON", b"\0\1\2", "JSON"),
    _case("cut JSON", VALID[:-1], "JSON"),
    _case("JSON and more", VALID + b"x", "JSON"),
    _case("not UTF-8", VALID.replace(b'"name": "x"', b'"name": "\xff"'), "JSON"),
    _case("half a surrogate pair", VALID.replace(b'"name": "x"', b'"name": "\\ud800"'), "JSON"),
    _case("bare NaN", VALID.replace(b"0.5", b"NaN"), "JSON"),
    _case("a number beyond FP64", VALID.replace(b"0.5", b"1e999"), "JSON"),
    _case("an array", b"[]", "object"),
    _case("null", b"null", "object"),
    _case("100000 open brackets", b"[" * 100_000, "JSON"),
    _case("100000 open objects", b'{"a":' * 100_000, "JSON"),
    _case("deep ignored member", _request(note=json.loads("[" * 101 + "]" * 101)), "100"),
    _case("deep parameters", _request(parameters={"p": json.loads('{"a":' * 101 + "1" + "}" * 101)}), "'p'"),
    _case("deep data", _with("x", data=json.loads("[" * 500 + "]" * 500)), "'x'"),
    _case("id is a number", _request(id=7), "'id'"),
    _case("id is null", _request(id=None), "'id'"),
]

_PARAMETERS = [
    _case("parameters is a list", _request(parameters=[]), "'parameters'"),
    _case("parameters is null", _request(parameters=None), "'parameters'"),
    _case("parameter is null", _request(parameters={"p": None}), "'p'"),
    _case("parameter is an array", _request(parameters={"p": [1]}), "'p'"),
    _case("parameter is an object", _request(parameters={"p": {}}), "'p'"),
    _case("parameter starts with triton_", _request(parameters={"triton_final": True}), "'triton_final'"),
    _case("parameter headers", _request(parameters={"headers": "a"}), "'headers'"),
    _case("headers is an object", _request(parameters={"headers": {}}), "'headers'"),
    _case("sequence_id", _request(parameters={"sequence_id": 1}), "'sequence_id'"),
    _case("sequence_id is text", _request(parameters={"sequence_id": "s"}), "'sequence_id'"),
    _case("sequence_id is false", _request(parameters={"sequence_id": False}), "'sequence_id'"),
    _case("sequence_id is 0.0", _request(parameters={"sequence_id": 0.0}), "'sequence_id'"),
    _case("sequence_start", _request(parameters={"sequence_start": True}), "'sequence_start'"),
    _case("sequence_end is a number", _request(parameters={"sequence_end": 1}), "'sequence_end'"),
    _case("priority is negative", _request(parameters={"priority": -1}), "'priority'"),
    _case("priority is text", _request(parameters={"priority": "high"}), "'priority'"),
    _case("timeout is negative", _request(parameters={"timeout": -1}), "'timeout'"),
    _case("timeout is fractional", _request(parameters={"timeout": 1.5}), "'timeout'"),
    _case("timeout is true", _request(parameters={"timeout": True}), "'timeout'"),
    _case("timeout is text", _request(parameters={"timeout": "1"}), "'timeout'"),
    _case("binary_data_output is a number", _request(parameters={"binary_data_output": 1}), "'binary_data_output'"),
]

_INPUT_LISTS = [
    _case("no inputs", {}, "'inputs'"),
    _case("inputs is null", _request(inputs=None), "'inputs'"),
    _case("inputs is an object", _request(inputs=_X), "'inputs'"),
    _case("inputs is empty", _request(inputs=[]), "'x'"),
    _case("input is text", _request(inputs=["x"]), "input 0"),
    _case("input is a list", _request(inputs=[_X, [_S]]), "input 1"),
    _case("input without a name", _with("x", drop=("name",)), "'name'"),
    _case("name is a number", _with("x", name=1), "'name'"),
    _case("name is a list", _with("x", name=["x"]), "'name'"),
    _case("unknown input", _with("x", name="z"), "'z'"),
    _case("missing input", _request(inputs=[_X, _K, _B]), "'s'"),
    _case("duplicate input", _request(inputs=[_X, _S, _K, _B, _X]), "'x'"),
    _case("input parameters is a list", _with("x", parameters=[]), "'x'"),
    _case("input parameter is null", _with("x", parameters={"p": None}), "'p'"),
    _case("deep ignored member of an input", _with("x", note=json.loads("[" * 99 + "]" * 99)), "100"),
]

_SHAPES = [
    _case("no datatype", _with("x", drop=("datatype",)), "'x'"),
    _case("datatype is a number", _with("x", datatype=32), "'x'"),
    _case("datatype is unknown", _with("x", datatype="FLOAT"), "'FLOAT'"),
    _case("datatype is another", _with("x", datatype="FP64"), "FP32"),
    _case("datatype in lower case", _with("x", datatype="fp32"), "'fp32'"),
    _case("no shape", _with("x", drop=("shape",)), "'x'"),
    _case("shape is text", _with("x", shape="-1"), "'x'"),
    _case("shape is an object", _with("x", shape={"0": 1}), "'x'"),
    _case("shape holds text", _with("x", shape=["1", 3]), "'1'"),
    _case("shape holds null", _with("x", shape=[None, 3]), "null"),
    _case("shape holds a boolean", _with("x", shape=[True, 3]), "true"),
    _case("shape holds a float", _with("x", shape=[1.0, 3]), "1.0"),
    _case("shape holds a list", _with("x", shape=[[1], 3]), "'x'"),
    _case("negative extent", _with("x", shape=[-1, 3]), "non-negative"),
    _case("too few axes", _with("x", shape=[3]), "[-1,3]"),
    _case("too many axes", _with("x", shape=[1, 1, 3]), "[1,1,3]"),
    _case("100000 axes", _with("x", shape=[1] * 100_000), "100000 axes"),
    _case("no axes", _with("x", shape=[], data=[1]), "[-1,3]"),
    _case("wrong extent", _with("x", shape=[1, 4], data=[0, 0, 0, 0]), "[1,4]"),
    _case("huge extent", _with("x", shape=[2**62, 3]), "'x'"),
    _case("extent beyond 64 bits", _with("x", shape=[2**64, 3]), "'x'"),
    _case("no rows", _empty(), "'x'"),
    _case("row counts differ", _with("b", shape=[2], data=[True, False]), "'b'"),
    _case("BYTES as UINT8 without an axis", _with("s", datatype="UINT8", shape=[]), "'s'"),
    _case("BYTES as UINT8 without one more axis", _with("s", datatype="UINT8", data=[1, 2]), "'s'"),
    _case("BYTES as UINT8 of no bytes", _with("s", datatype="UINT8", shape=[1, 2, 0], data=[]), "'s'"),
    _case("BYTES as INT8", _with("s", datatype="INT8", shape=[1, 2, 1], data=[1, 2]), "'s'"),
]

_DATA = [
    _case("neither data nor size", _with("x", drop=("data",)), "'x'"),
    _case("data and size", _with("x", parameters={"binary_data_size": 12}), "'x'"),
    _case("data is null", _with("x", data=None), "'x'"),
    _case("data is a number", _with("x", data=1), "'x'"),
    _case("data is text", _with("s", data="ab"), "'s'"),
    _case("data is an object", _with("x", data={"0": 1}), "'x'"),
    _case("too few elements", _with("x", data=[0, 1]), "'x'"),
    _case("too many elements", _with("x", data=[0, 1, 2, 3]), "'x'"),
    _case("no elements", _with("x", data=[]), "'x'"),
    _case("nested otherwise", _with("x", data=[[0], [1], [2]]), "'x'"),
    _case("nested too deep", _with("x", data=[[[0, 1, 2]]]), "'x'"),
    _case("nested in part", _with("k", data=[[1], 2]), "'k'"),
    _case("flat, then nested", _with("k", data=[1, [2]]), "'k'"),
    _case("nested where flat", _with("b", data=[[True]]), "'b'"),
    _case("a float is null", _with("x", data=[0, None, 1]), "element 1"),
    _case("a float is a boolean", _with("x", data=[0, 1, False]), "element 2"),
    _case("a float is text", _with("x", data=["1", 0, 0]), "'1'"),
    _case("a float is nan in lower case", _with("x", data=["nan", 0, 0]), "'nan'"),
    _case("a float is out of range", _with("x", data=[1e39, 0, 0]), "1e+39"),
    _case("an integer is a float", _with("k", data=[1.0, 2]), "1.0"),
    _case("an integer is a boolean", _with("k", data=[1, True]), "true"),
    _case("an integer is text", _with("k", data=[1, "2"]), "'2'"),
    _case("an integer is null", _with("k", data=[None, 1]), "null"),
    _case("an integer is out of range", _with("k", data=[0, 128]), "128"),
    _case("an integer beyond 64 bits", _with("k", data=[0, 10**30]), "'k'"),
    _case("a boolean is a number", _with("b", data=[1]), "'b'"),
    _case("a boolean is text", _with("b", data=["true"]), "'b'"),
    _case("a string is a number", _with("s", data=["a", 1]), "'s'"),
    _case("a string is null", _with("s", data=["a", None]), "'s'"),
]

_OUTPUT_LISTS = [
    _case("outputs is null", _request(outputs=None), "'outputs'"),
    _case("outputs is an object", _request(outputs={}), "'outputs'"),
    _case("output is text", _request(outputs=["y"]), "output 0"),
    _case("output without a name", _request(outputs=[{}]), "'name'"),
    _case("output name is null", _output(name=None), "'name'"),
    _case("unknown output", _output(name="x"), "'x'"),
    _case("duplicate output", _request(outputs=[{"name": "y"}, {"name": "t"}, {"name": "y"}]), "'y'"),
    _case("output parameters is null", _output(parameters=None), "'y'"),
    _case("output parameter is a list", _output(parameters={"p": []}), "'p'"),
    _case("binary_data is a number", _output(parameters={"binary_data": 1}), "'binary_data'"),
    _case("binary_data is text", _output(parameters={"binary_data": "true"}), "'binary_data'"),
    _case("classification is negative", _output(parameters={"classification": -1}), "'classification'"),
    _case("classification is true", _output(parameters={"classification": True}), "'classification'"),
    _case("classification of text", _request(outputs=[{"name": "t", "parameters": {"classification": 1}}]), "'t'"),
    _case("classification of booleans", _request(outputs=[{"name": "c", "parameters": {"classification": 1}}]), "'c'"),
    _case("deep ignored member of an output", _output(note=json.loads("[" * 99 + "]" * 99)), "100"),
]

_BINARY = [
    _case("binary without a header length", _sized("x", 12), "'x'"),
    _behind("size is negative", _sized("x", -12), bytes(12), "'binary_data_size'"),
    _behind("size is a float", _sized("x", 12.0), bytes(12), "'binary_data_size'"),
    _behind("size is text", _sized("x", "12"), bytes(12), "'binary_data_size'"),
    _behind("size is true", _sized("b", True), bytes(1), "'binary_data_size'"),
    _behind("size is null", _sized("x", None), bytes(12), "'binary_data_size'"),
    _behind("size is huge", _sized("x", 2**63), bytes(12), "'x'"),
    _behind("size is not the shape's", _sized("x", 8), bytes(8), "'x'"),
    _behind("truncated", _sized("x", 12), bytes(11), "1 additional bytes"),
    _behind("no bytes at all", _sized("x", 12), b"", "'x'"),
    _behind("left over", _sized("x", 12), bytes(13), "'x'"),
    _behind("left over behind JSON data", _request(), b"\0", "additional"),
    _behind("BYTES too short for its lengths", _sized("s", 7), bytes(7), "at least 8 bytes"),
    _behind("BYTES of one element too few", _sized("s", 8), b"\4\0\0\0abcd", "'s'"),
    _behind("BYTES with half a length", _sized("s", 8), b"\1\0\0\0a\0\0\0", "'s'"),
    _behind("BYTES element beyond the end", _sized("s", 9), b"\0\0\0\0\2\0\0\0a", "element 1"),
    _behind("BYTES length of 4 GB", _sized("s", 9), b"\xff\xff\xff\xff\0\0\0\0a", "4294967295"),
    _behind("BYTES left over", _sized("s", 9), bytes(9), "'s'"),
    _behind("BYTES of a huge shape", _sized("s", 8, shape=[2**60, 2]), bytes(8), "'s'"),
    _behind("BYTES of many elements", _sized("s", 8, shape=[2**40, 2]), bytes(8), "'s'"),
    Malformed("second tensor truncated", VALID_BINARY[0][:-1], VALID_BINARY[1], "'b'"),
    Malformed("header length one too small", VALID_BINARY[0], str(int(VALID_BINARY[1]) - 1), "JSON"),
    Malformed("header length one too large", VALID_BINARY[0], str(int(VALID_BINARY[1]) + 1), "JSON"),
    Malformed("binary body without a header length", VALID_BINARY[0], None, "JSON"),
]

#: Wrong whatever regions there are. 2⁶⁴ and more reach us as a float.
_SHARED = [
    *[
        _case(f"input in shared memory: {what}", _with("x", drop=("data",), parameters=given), names)
        for what, given, names in [
            ("no size", {"shared_memory_region": "r"}, "'shared_memory_byte_size'"),
            ("no region", {"shared_memory_byte_size": 12}, "'shared_memory_region'"),
            ("only an offset", {"shared_memory_offset": 12}, "'shared_memory_region'"),
            ("region is a number", {**_RANGE, "shared_memory_region": 1}, "'shared_memory_region'"),
            ("size is negative", {**_RANGE, "shared_memory_byte_size": -12}, "'shared_memory_byte_size'"),
            ("size is true", {**_RANGE, "shared_memory_byte_size": True}, "'shared_memory_byte_size'"),
            ("size is text", {**_RANGE, "shared_memory_byte_size": "12"}, "'shared_memory_byte_size'"),
            ("size is 0", {**_RANGE, "shared_memory_byte_size": 0}, "takes 12"),
            ("size is not that of the shape", {**_RANGE, "shared_memory_byte_size": 16}, "takes 12"),
            ("offset is negative", {**_RANGE, "shared_memory_offset": -1}, "'shared_memory_offset'"),
            ("offset is fractional", {**_RANGE, "shared_memory_offset": 0.5}, "'shared_memory_offset'"),
            ("offset beyond 64 bits", {**_RANGE, "shared_memory_offset": 2**64}, "'shared_memory_offset'"),
            ("a parameter that is none", {**_RANGE, "shared_memory_key": "k"}, "'shared_memory_key'"),
            ("and binary", {**_RANGE, "binary_data_size": 12}, "'binary_data_size'"),
        ]
    ],
    _case("input in shared memory: and data", _with("x", parameters=_RANGE), "'data'"),
    _case(
        "text in shared memory: size below that of the lengths",
        _with("s", drop=("data",), parameters={**_RANGE, "shared_memory_byte_size": 7}),
        "at least 8",
    ),
    _case("the request in shared memory", _request(parameters=_RANGE), "'shared_memory_region'"),
    *[
        _case(f"output to shared memory: {what}", _output(parameters=given), names)
        for what, given, names in [
            ("no size", {"shared_memory_region": "r"}, "'shared_memory_byte_size'"),
            ("no region", {"shared_memory_byte_size": 12}, "'shared_memory_region'"),
            ("offset is negative", {**_RANGE, "shared_memory_offset": -1}, "'shared_memory_offset'"),
            ("and binary", {**_RANGE, "binary_data": True}, "'binary_data'"),
            ("and classification", {**_RANGE, "classification": 1}, "'classification'"),
        ]
    ],
]

MALFORMED: list[Malformed] = (
    _HEADER + _DOCUMENTS + _PARAMETERS + _INPUT_LISTS + _SHAPES + _DATA + _OUTPUT_LISTS + _BINARY + _SHARED
)
