"""The official client, synchronous and asynchronous, against a real process: what it can send comes back exactly."""

import asyncio
import gzip
import json
from pathlib import Path

import httpx
import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.api.codec.test_tritonclient import SAMPLES
from tests.api.codec.wire import same
from tests.e2e.conftest import running

KINDS = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
NUMBERS = tuple(name for name in KINDS if name not in ("BF16", "BYTES"))
#: Model → the datatypes that it answers unchanged: input `FP32` is output `FP32_out`.
MODELS = {"numbers": NUMBERS, "brain": ("BF16",), "text": ("BYTES",)}
TEXT = np.array([["", "é"], ["a\0b", "\U0001f600" * 50]], np.object_)


def echo(names):
    taken, given = (
        [helper.make_tensor_value_info(name + end, KINDS[name], ["n", "m"]) for name in names] for end in ("", "_out")
    )
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names]
    graph = helper.make_graph(nodes, "echo", taken, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundles")
    for model, names in MODELS.items():
        (root / model).mkdir()
        (root / model / "model.onnx").write_bytes(echo(names).SerializeToString())
        (root / model / "manifest.yaml").write_text('format_version: "1"\nbatching: {compiled_batch_sizes: [1, 2]}\n')
    return root


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "asgi"])
def echoes(request, cache_dir, model_dirs):
    with running(cache_dir, model_dirs, ENDPOINTS_FAST_PATH=request.param) as server:
        yield server


@pytest.fixture
def client(echoes):
    with triton.InferenceServerClient(echoes.address, network_timeout=60) as client:
        yield client


def sample(name):
    return TEXT if name == "BYTES" else SAMPLES[name]


def inputs(names, binary, module=triton):
    """Inputs of these datatypes, in binary where `binary(name)`."""
    made = []
    for name in names:
        array = sample(name)
        tensor = module.InferInput(name, list(array.shape), name)
        made.append(tensor.set_data_from_numpy(array, binary_data=binary(name)))
    return made


def as_sent(name):
    """What comes back: text as bytes."""
    array = sample(name)
    return np.vectorize(str.encode, otypes=[np.object_])(array) if name == "BYTES" else array


def check(answer, names):
    for name in names:
        got, expected = answer.as_numpy(f"{name}_out"), as_sent(name)
        if name == "BYTES" and got.ravel().tolist() and isinstance(got.ravel()[0], str):
            got = np.vectorize(str.encode, otypes=[np.object_])(got)  # JSON gives text
        if got.dtype == ml_dtypes.bfloat16:
            got, expected = got.view(np.uint16), expected.view(np.uint16)
        assert same(got, expected), name


FORMS = {
    "binary": lambda name: True,
    "JSON": lambda name: name == "BF16",
    "mixed": lambda name: len(name) % 2 == 0 or name == "BF16",
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wanted", [*FORMS, None])
def test_every_datatype_comes_back_exactly_in_every_form(client, model, form, wanted):
    names = MODELS[model]
    if wanted == "JSON" and model == "brain":
        wanted = "binary"  # the client reads BF16 in binary only
    outputs = None
    if wanted is not None:
        outputs = [triton.InferRequestedOutput(f"{name}_out", binary_data=FORMS[wanted](name)) for name in names]
    answer = client.infer(model, inputs(names, FORMS[form]), outputs=outputs, request_id="é-1")
    check(answer, names)
    assert answer.get_response()["id"] == "é-1"


@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("asked", [None, "gzip", "deflate"])
def test_requests_and_answers_may_be_compressed(client, sent, asked):
    array = np.arange(4000, dtype=np.int64).reshape(2, 2000)
    names = MODELS["text"]
    text = np.vectorize(str, otypes=[np.object_])(array)
    tensor = triton.InferInput("BYTES", list(text.shape), "BYTES").set_data_from_numpy(text)
    answer = client.infer(
        "text", [tensor], request_compression_algorithm=sent, response_compression_algorithm=asked, outputs=None
    )
    assert [int(each) for each in answer.as_numpy("BYTES_out").ravel()] == array.ravel().tolist()
    check(client.infer("text", inputs(names, FORMS["JSON"]), request_compression_algorithm=sent), names)


def test_compressed_answers_are_smaller_and_say_so(echoes):
    document = {"inputs": [{"name": "BYTES", "datatype": "BYTES", "shape": [1, 2], "data": ["x" * 5000, ""]}]}
    headers = {"Accept-Encoding": "deflate", "Content-Encoding": "gzip"}
    body = gzip.compress(json.dumps(document).encode())
    answer = httpx.post(
        f"{echoes.url}/v2/models/text/infer", content=body, headers=headers, timeout=60, trust_env=False
    )
    assert answer.headers["content-encoding"] == "deflate"
    assert int(answer.headers["content-length"]) < 1000
    assert answer.json()["outputs"][0]["data"] == ["x" * 5000, ""]


def test_a_truncated_stream_and_a_bomb_are_refused(echoes):
    def status(body):
        headers = {"Content-Encoding": "gzip"}
        answer = httpx.post(
            f"{echoes.url}/v2/models/text/infer", content=body, headers=headers, timeout=60, trust_env=False
        )
        return answer.status_code, answer.json()["code"]

    assert status(gzip.compress(b" " * 1000)[:-5]) == (400, "invalid_request")
    assert status(gzip.compress(bytes(100_000_000), 1)) == (413, "payload_too_large")


def test_parameters_are_taken(client):
    names = MODELS["text"]
    check(client.infer("text", inputs(names, FORMS["binary"]), priority=3, timeout=30_000_000), names)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("text", inputs(names, FORMS["binary"]), timeout=1)
    assert caught.value.status() == "504"
    with pytest.raises(InferenceServerException, match="sequence") as caught:
        client.infer("text", inputs(names, FORMS["binary"]), sequence_id=5, sequence_start=True)
    assert caught.value.status() == "400"


def test_errors_say_what_is_wrong_with_which_tensor(client):
    flawed = triton.InferInput("BYTES", [1, 2], "BYTES").set_data_from_numpy(np.array([[b"ok", b"\xff"]], np.object_))
    with pytest.raises(InferenceServerException, match=r"'BYTES'.*element 1.*UTF-8") as caught:
        client.infer("text", [flawed])
    assert caught.value.status() == "400"
    with pytest.raises(InferenceServerException, match="unknown version") as caught:
        client.infer("text", inputs(MODELS["text"], FORMS["binary"]), model_version="2")
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="missing") as caught:
        client.infer("numbers", inputs(NUMBERS[:3], FORMS["binary"]))
    assert caught.value.status() == "400"


def test_the_control_routes_answer_the_client(client):
    before = client.get_inference_statistics("numbers")["model_stats"][0]
    check(client.infer("numbers", inputs(NUMBERS, FORMS["binary"])), NUMBERS)
    after = client.get_inference_statistics("numbers", "1")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 2
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 1
    assert {each["name"] for each in client.get_inference_statistics()["model_stats"]} == set(MODELS)
    config = client.get_model_config("brain")
    assert config["max_batch_size"] == 2
    assert config["input"] == [{"name": "BF16", "data_type": "TYPE_BF16", "dims": [-1]}]
    assert {"statistics", "model_configuration"} <= set(client.get_server_metadata()["extensions"])


def test_large_json_is_served_exactly(echoes):
    """Above 1 MiB it is decoded in another process."""
    values = np.random.default_rng(1).standard_normal((2, 60_000))
    text = [f"é{number}" for number in range(120_000)]
    for model, data in (("numbers", None), ("text", text)):
        tensors = [{"name": name, "datatype": name, "shape": [2, 0], "data": []} for name in MODELS[model]]
        tensor = next(each for each in tensors if each["name"] in ("FP64", "BYTES"))
        tensor.update(shape=[2, 60_000], data=values.tolist() if data is None else data)
        body = json.dumps({"inputs": tensors, "outputs": [{"name": f"{tensor['name']}_out"}]}).encode()
        assert len(body) > 1 << 20
        answer = httpx.post(f"{echoes.url}/v2/models/{model}/infer", content=body, timeout=60, trust_env=False).json()
        assert answer["outputs"][0]["data"] == (values.ravel().tolist() if data is None else text)
    children = " ".join(
        each.read_text() for each in Path(f"/proc/{echoes.process.pid}/task").glob("*/children")
    ).split()
    assert any(b"app.api.codec.aside" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)
    cut = b'{"inputs": [' + b" " * (1 << 20)
    refused = httpx.post(f"{echoes.url}/v2/models/text/infer", content=cut, timeout=60, trust_env=False)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


async def ask_everything(address):
    async with triton_aio.InferenceServerClient(address, conn_limit=8) as client:

        async def one(model, form, sent, asked):
            made = inputs(MODELS[model], FORMS[form], triton_aio)
            answer = await client.infer(
                model, made, request_compression_algorithm=sent, response_compression_algorithm=asked
            )
            check(answer, MODELS[model])

        codings = (None, "gzip", "deflate")
        await asyncio.gather(*[one(m, f, s, a) for m in MODELS for f in FORMS for s in codings for a in codings])
        assert await client.is_server_ready()
        assert (await client.get_model_metadata("text"))["inputs"][0]["datatype"] == "BYTES"
        assert (await client.get_model_config("text"))["name"] == "text"
        assert len((await client.get_inference_statistics())["model_stats"]) == len(MODELS)
        with pytest.raises(InferenceServerException, match="unknown model") as caught:
            await client.infer("absent", inputs(MODELS["text"], FORMS["binary"], triton_aio))
        assert caught.value.status() == "404"


def test_the_asynchronous_client_is_served_as_well(echoes):
    asyncio.run(ask_everything(echoes.address))
