"""The official client's own encoder and decoder against ours, without a server."""

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from app.api.codec.reply import Encoder
from app.api.codec.request import Decoder
from tests.api.codec.wire import DTYPES, objects, same
from tests.builders import spec, tensor

SAMPLES = {
    "BOOL": np.array([[True, False], [False, True]]),
    "FP16": np.array([[0.1, -0.0], [65504, 6e-8]], np.float16),
    "FP32": np.array([[0.1, -0.0], [3e38, 1e-45]], np.float32),
    "FP64": np.array([[0.1, -0.0], [1e308, 5e-324]], np.float64),
    "BF16": np.array([[0.1, -0.0], [3e38, 1]], ml_dtypes.bfloat16),
    "BYTES": objects([b"", "é".encode(), b"a\0", b"abc"], (2, 2)),
} | {
    name: np.array([[np.iinfo(dtype).min, 0], [1, np.iinfo(dtype).max]], dtype)
    for name, dtype in DTYPES.items()
    if "INT" in name
}


def ours(array):
    """The array as the server carries it."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def round_trip(array, datatype, *, binary_in=True, outputs=None, labels=None, **options):
    """Client → codec → identity model → codec → client."""
    model = spec(
        inputs=(tensor("x", datatype, (-1,) * array.ndim),),
        outputs=(tensor("y", datatype, (-1,) * array.ndim),),
        labels=labels,
    )
    given = InferInput("x", list(array.shape), datatype).set_data_from_numpy(array, binary_data=binary_in)
    body, header_length = InferenceServerClient.generate_request_body([given], outputs=outputs, **options)
    decoded = Decoder().decode(body, None if header_length is None else str(header_length), "id", model)
    assert same(decoded.inputs["x"], ours(array))
    headers, buffers = Encoder().encode(decoded, "id", model, {"y": decoded.inputs["x"]})
    length = dict(headers).get(b"inference-header-content-length")
    return decoded, InferenceServerClient.parse_response_body(
        b"".join(buffers), header_length=None if length is None else int(length)
    )


@pytest.mark.parametrize("datatype", DTYPES)
def test_binary_round_trip(datatype):
    array = SAMPLES[datatype]
    _, result = round_trip(array, datatype)
    assert same(ours(result.as_numpy("y")), ours(array))
    assert result.get_output("y")["parameters"]["binary_data_size"] > 0


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BF16"])
def test_json_round_trip(datatype):
    array = SAMPLES[datatype]
    _, result = round_trip(array, datatype, binary_in=False, outputs=[InferRequestedOutput("y", binary_data=False)])
    got = result.as_numpy("y")
    if datatype == "BYTES":
        got = objects([text.encode() for text in got.flat], got.shape)
    assert same(got, array)


def test_json_answer_to_bf16_reads_as_the_same_numbers():
    array = SAMPLES["BF16"]
    _, result = round_trip(array, "BF16", outputs=[InferRequestedOutput("y", binary_data=False)])
    assert result.get_output("y")["data"] == array.astype(np.float64).ravel().tolist()


def test_nan_and_infinities_reach_the_client_as_json():
    array = np.array([[np.nan, np.inf], [-np.inf, 1]], np.float32)
    _, result = round_trip(array, "FP32", outputs=[InferRequestedOutput("y", binary_data=False)])
    assert np.array_equal(result.as_numpy("y"), array, equal_nan=True)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("binary", [True, False])
def test_empty_tensor_round_trip(datatype, binary):
    array = SAMPLES[datatype][:, :0]
    outputs = [InferRequestedOutput("y", binary_data=binary)]
    _, result = round_trip(array, datatype, binary_in=binary, outputs=outputs)
    assert result.as_numpy("y").shape == (2, 0)


def test_answer_to_json_inputs_without_named_outputs_is_binary():
    decoded, result = round_trip(SAMPLES["FP32"], "FP32", binary_in=False)
    assert decoded.binary_default
    assert "data" not in result.get_output("y")


def test_options_of_the_client_arrive():
    decoded, result = round_trip(
        SAMPLES["FP32"], "FP32", request_id="r7", priority=2, timeout=1500, parameters={"explain": True}
    )
    assert (decoded.id, decoded.timeout_us, decoded.parameters) == ("r7", 1500, {"explain": True})
    assert result.get_response()["id"] == "r7"


@pytest.mark.parametrize("binary", [True, False])
def test_classification_reaches_the_client(binary):
    outputs = [InferRequestedOutput("y", binary_data=binary, class_count=1)]
    _, result = round_trip(np.array([[1, 3], [5, 4]], np.float32), "FP32", outputs=outputs, labels={"y": ("no", "yes")})
    texts = [text.decode() if binary else text for text in result.as_numpy("y").flat]
    assert texts == ["3.000000:1:yes", "5.000000:0:no"]
    assert result.as_numpy("y").shape == (2, 1)
