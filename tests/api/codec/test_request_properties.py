"""Whatever bytes arrive, the decoder returns valid tensors or raises `InvalidRequest`."""

import json
from copy import deepcopy
from math import prod

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from app.api.codec.reply import Encoder
from app.api.codec.request import Decoder
from app.domain.errors import InvalidRequest
from tests.api.codec.wire import DTYPES, item, objects, read
from tests.api.malformed import MODEL, VALID, VALID_BINARY
from tests.builders import spec, tensor

#: Kept over all examples, so that heads learnt from one meet the bodies of others.
DECODER = Decoder(remembered=8)
TENSORS = {
    "x": (np.array([[1.5, -2, 0], [3, 4, 5]], np.float32), "FP32"),
    "s": (objects([b"a", b"", b"\xff", b"long"], (2, 2)), "BYTES"),
    "k": (np.array([[1, 2], [-3, 4]], np.int8), "INT8"),
    "b": (np.array([True, False]), "BOOL"),
}
OUTPUTS = [{"name": "y", "parameters": {"classification": 2}}, {"name": "t", "parameters": {"binary_data": True}}]
PARAMETERS = {
    "timeout": 5,
    "priority": 0,
    "sequence_id": 0,
    "sequence_start": False,
    "binary_data_output": True,
    "a": 1,
}
WORDS = [
    "inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data", "binary_data_size", "binary_data",
    "classification", "timeout", "sequence_id", "headers", "triton_", "shared_memory_region", "x", "s", "k", "b", "y",
    "FP32", "BYTES", "UINT8", "BOOL", "INT8", "FP16", "NaN", "Infinity", "-Infinity", "",
]  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**40])
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=4)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
)
lengths = st.integers(-2, 400).map(str) | st.text(max_size=5) | st.sampled_from(["1" * 19, "9" * 20, "\u00b2", "0"])


def attempt(function, *arguments):
    """What it returns, or the message of its `InvalidRequest`; anything else that it raises fails the test."""
    try:
        return function(*arguments), None
    except InvalidRequest as refusal:
        return None, refusal.message


def check(body, header_length, model=MODEL):
    """Decode; what is accepted must be right and must encode, what is not must be an `InvalidRequest`."""
    for kind in (bytes, bytearray, memoryview):
        decoded, refusal = attempt(DECODER.decode, kind(body), header_length, model.name, model)
        event("accepted" if decoded else "refused")
        if decoded:
            check_accepted(decoded, model)
        else:
            assert len(refusal.encode()) < 1000


def check_accepted(decoded, model):
    assert decoded.inputs.keys() == model.client_inputs_by_name.keys()
    for declared in model.client_inputs:
        array = decoded.inputs[declared.name]
        assert array.dtype == declared.dtype
        assert declared.accepts(array.shape)
        assert array.flags.c_contiguous
        if array.dtype.hasobject:
            assert {type(element) for element in array.flat} <= {bytes}
    if model is not MODEL:
        return
    assert len({len(array) for array in decoded.inputs.values()}) == 1
    outputs = dict(zip("ytlc", (decoded.inputs[name] for name in "xskb"), strict=True))
    encoded, refusal = attempt(Encoder().encode, decoded, "id", MODEL, outputs)
    if encoded:
        read(encoded)
    else:
        assert "'t'" in refusal


@st.composite
def documents(draw):
    """A valid request as a document and the bytes behind it, each input in a form of its own."""
    items = [item(name, *TENSORS[name], draw(st.sampled_from(["binary", "flat", "nested"]))) for name in "xkb"]
    items.append(item("s", *TENSORS["s"], "binary"))
    document = {"id": "7", "inputs": [member for member, _ in items], "outputs": OUTPUTS, "parameters": PARAMETERS}
    return deepcopy(document), b"".join(data for _, data in items)


def places(node, path=()):
    """The paths of all members of a document."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutate(draw, document):
    """Change one member: replace it, drop it, or add another."""
    path = draw(st.sampled_from(sorted(places(document), key=repr)))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    change = draw(st.sampled_from(["replace", "drop", "add"]))
    if change == "replace":
        parent[key] = draw(values)
    elif change == "drop":
        del parent[key]
    elif isinstance(parent, list):
        parent.insert(0, deepcopy(parent[key]))
    else:
        parent[draw(st.sampled_from(WORDS))] = draw(values)


def encode(document):
    return json.dumps(document).encode("utf-8", "surrogatepass")


@settings(max_examples=400)
@given(st.data())
def test_changed_members_never_raise_anything_else(data):
    document, blobs = data.draw(documents())
    for _ in range(data.draw(st.integers(0, 3))):
        if document:
            mutate(data.draw, document)
    head = encode(document)
    check(head + blobs, str(len(head)))


@settings(max_examples=400)
@given(st.data())
def test_changed_bytes_never_raise_anything_else(data):
    document, blobs = data.draw(documents())
    head = encode(document)
    body = bytearray(head + blobs)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(body)))
        cut = data.draw(st.sampled_from([0, 1, 1, 2, 8, len(body)]))
        body[at : at + cut] = data.draw(st.binary(max_size=3) | st.sampled_from([b"[", b"{", b'"', b",", b"-", b"1e9"]))
    check(bytes(body), str(min(len(head), len(body))))


@given(st.binary(max_size=40), st.none() | lengths)
def test_arbitrary_bytes_never_raise_anything_else(body, header_length):
    check(body, header_length)


@given(st.sampled_from([VALID, VALID_BINARY[0]]), st.none() | lengths)
def test_arbitrary_header_lengths_never_raise_anything_else(body, header_length):
    check(body, header_length)


@given(st.sampled_from(list(DTYPES)), st.lists(st.integers(-1, 4), max_size=3), st.data())
def test_arbitrary_raw_requests_never_raise_anything_else(datatype, shape, data):
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1)) if shape else None
    inputs = (tensor("x", datatype, tuple(shape), axis),)
    check(data.draw(st.binary(max_size=64)), "0", spec("raw", inputs=inputs))


@given(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 2), max_size=3), values, st.booleans())
def test_arbitrary_data_never_raises_anything_else(datatype, shape, value, repeated):
    inputs = (tensor("x", datatype, (-1,) * len(shape), None),)
    data = [value] * prod(shape) if repeated else value
    entry = {"name": "x", "shape": shape, "datatype": datatype, "data": data}
    check(encode({"inputs": [entry]}), None, spec("data", inputs=inputs))


@given(values)
def test_arbitrary_documents_never_raise_anything_else(document):
    check(encode(document), None)


@given(values, st.sampled_from(["data", "shape", "parameters", "datatype", "name"]), st.sampled_from("xskb"))
def test_arbitrary_members_of_an_input_never_raise_anything_else(value, member, name):
    document = json.loads(VALID)
    (entry,) = (entry for entry in document["inputs"] if entry["name"] == name)
    entry[member] = value
    check(encode(document), None)
