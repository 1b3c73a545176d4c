"""Round trips over all datatypes, shapes and forms, and parity of the forms."""

import json
import math

import numpy as np
from hypothesis import event, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.api.codec.json import read_data
from app.api.codec.parameters import OutputRequest
from app.api.codec.reply import Encoder
from app.api.codec.request import Decoder
from tests.api.codec.wire import DTYPES, blob, item, numbers, objects, read, request, same
from tests.builders import spec, tensor

datatypes = st.sampled_from(list(DTYPES))
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
forms = st.sampled_from(["binary", "nested", "flat"])


@st.composite
def tensors(draw, shape=None, text=False):
    """A datatype and an array of it; `text` keeps BYTES to UTF-8."""
    datatype = draw(datatypes)
    shape = draw(shapes) if shape is None else shape
    if datatype == "BYTES":
        element = st.text(max_size=3).map(str.encode) if text else st.binary(max_size=5)
        count = math.prod(shape)
        return datatype, objects(draw(st.lists(element, min_size=count, max_size=count)), shape)
    return datatype, draw(arrays.arrays(DTYPES[datatype], shape))


def canonical(array, datatype):
    """The array with one NaN instead of many: JSON knows only one."""
    if datatype == "BF16":
        return np.where((array & 0x7FFF) > 0x7F80, np.uint16(0x7FC0), array)
    return np.where(np.isnan(array), array.dtype.type(np.nan), array) if array.dtype.kind == "f" else array


def declared(name, datatype, array):
    return tensor(name, datatype, (-1,) * array.ndim, None)


@given(tensors(), st.integers(0, 7))
def test_binary_input_arrives_bit_for_bit(drawn, pad):
    datatype, array = drawn
    body, header_length = request(item("x", array, datatype), pad=pad)
    model = spec(inputs=(declared("x", datatype, array),))
    decoder = Decoder()
    for _ in range(2):
        got = decoder.decode(body, header_length, "id", model).inputs["x"]
        assert same(got, array)


@given(tensors(text=True))
def test_nested_and_flat_json_arrive_alike(drawn):
    datatype, array = drawn
    event(datatype)
    model = spec(inputs=(declared("x", datatype, array),))
    for form in ("nested", "flat"):
        body, _ = request(item("x", array, datatype, form))
        got = Decoder().decode(body, None, "id", model).inputs["x"]
        assert same(canonical(got, datatype), canonical(array, datatype))


@given(tensors(text=True), st.booleans(), st.none() | st.text(min_size=1))
def test_output_reads_back_in_either_form(drawn, binary, identifier):
    datatype, array = drawn
    model = spec(outputs=(declared("y", datatype, array),))
    decoded = Decoder().decode(*request(item("x", np.zeros((1, 3), np.float32))), "id", model)
    decoded.id, decoded.binary_default = identifier, binary
    encoder = Encoder()
    for _ in range(2):
        document, rest, headers = read(encoder.encode(decoded, "id", model, {"y": array}))
        (output,) = document["outputs"]
        assert document.get("id") == identifier
        assert (output["datatype"], output["shape"]) == (datatype, list(array.shape))
        assert (b"inference-header-content-length" in headers) == bool(rest)
        if binary:
            assert rest == blob(array, datatype)
            assert output["parameters"] == {"binary_data_size": len(rest)}
        else:
            got = read_data(output["data"], "y", datatype, array.shape)
            assert same(canonical(got, datatype), canonical(array, datatype))


@given(st.lists(st.tuples(tensors(shape=(2, 2), text=True), forms), min_size=1, max_size=4), st.randoms())
def test_inputs_of_mixed_forms_in_any_order_arrive(drawn, random):
    sent = {f"x{index}": (datatype, array, form) for index, ((datatype, array), form) in enumerate(drawn)}
    model = spec(inputs=tuple(tensor(name, datatype, (-1, 2)) for name, (datatype, _, _) in sent.items()))
    items = [item(name, array, datatype, form) for name, (datatype, array, form) in sent.items()]
    random.shuffle(items)
    inputs = Decoder().decode(*request(*items), "id", model).inputs
    assert inputs.keys() == sent.keys()
    for name, (datatype, array, _) in sent.items():
        assert same(canonical(inputs[name], datatype), canonical(array, datatype))


@given(st.lists(st.tuples(tensors(text=True), st.booleans()), min_size=1, max_size=4), st.randoms())
def test_outputs_of_mixed_forms_in_any_order_read_back(drawn, random):
    made = {f"y{index}": drawn_tensor for index, (drawn_tensor, _) in enumerate(drawn)}
    model = spec(outputs=tuple(declared(name, datatype, array) for name, (datatype, array) in made.items()))
    wanted = [OutputRequest(f"y{index}", binary) for index, (_, binary) in enumerate(drawn)]
    random.shuffle(wanted)
    decoded = Decoder().decode(*request(item("x", np.zeros((1, 3), np.float32))), "id", model)
    decoded.outputs = tuple(wanted[: random.randint(1, len(wanted))])
    encoded = Encoder().encode(decoded, "id", model, {name: array for name, (_, array) in made.items()})
    document, rest, _ = read(encoded)
    assert [output["name"] for output in document["outputs"]] == [output.name for output in decoded.outputs]
    for output, (name, binary, *_) in zip(document["outputs"], decoded.outputs, strict=True):
        datatype, array = made[name]
        if binary:
            size = output["parameters"]["binary_data_size"]
            assert rest[:size] == blob(array, datatype)
            rest = rest[size:]
        else:
            assert output["data"] == flat_json(array, datatype)
    assert rest == b""


def flat_json(array, datatype):
    """What JSON readers see: FP32 in its shortest form."""
    if datatype == "FP32":
        return [float(str(value)) if np.isfinite(value) else NAMES[str(value)] for value in array.ravel()]
    return json.loads(json.dumps(numbers(array.reshape(-1), datatype)))


NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-3.38e38, max_value=3.38e38))
@example(1 + 2**-8 + 2**-40)
@example(2.0**-134)
def test_bf16_is_the_nearest_value_and_even_on_a_tie(value):
    (bits,) = read_data([value], "x", "BF16", (1,)).tolist()

    def number(pattern):
        return float(np.array([pattern << 16], np.uint32).view(np.float32)[0])

    magnitude, target = bits & 0x7FFF, abs(value)
    near = {
        pattern: abs(abs(number(pattern)) - target)
        for pattern in (magnitude - 1, magnitude, magnitude + 1)
        if pattern >= 0
    }
    best = min(near.values())
    assert near[magnitude] == best
    if list(near.values()).count(best) > 1:
        assert magnitude % 2 == 0
    assert (bits >> 15) == (math.copysign(1, value) < 0)
