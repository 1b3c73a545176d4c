"""The tabular bundle, served by a real process, against ONNX Runtime in this one."""

import asyncio

import httpx
import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import ROOT

RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module")
def direct():
    """The same model, run in this process."""
    session = ort.InferenceSession(str(ROOT / "bundles/tabular/model.onnx"), providers=["CPUExecutionProvider"])
    return lambda x: session.run(["label", "probabilities"], {"X": x})


def samples(rows):
    sample = np.load(ROOT / "bundles/tabular/sample.npz")["X"].astype(np.float32)
    return (sample[RANDOM.integers(0, len(sample), rows)] * RANDOM.uniform(0.5, 1.5, (rows, 30))).astype(np.float32)


def check(answer, expected):
    np.testing.assert_array_equal(answer.as_numpy("label"), expected[0])
    np.testing.assert_allclose(answer.as_numpy("probabilities"), expected[1], rtol=1e-5, atol=1e-6)


def infer_input(x, binary=True, module=triton):
    tensor = module.InferInput("X", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return tensor


@pytest.fixture
def client(either):
    with triton.InferenceServerClient(either.address, concurrency=8, network_timeout=60) as client:
        yield client


def test_the_server_describes_itself_to_tritonclient(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tabular")
    assert client.is_model_ready("tabular", "1")
    assert not client.is_model_ready("absent")
    assert client.get_server_metadata()["name"] == "inference-server"
    metadata = client.get_model_metadata("tabular")
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 30]}]
    assert [output["name"] for output in metadata["outputs"]] == ["label", "probabilities"]
    index = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
    assert index == {"filetype": "READY", "orientation": "READY", "tabular": "READY"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_tritonclient_gets_the_models_answer(client, direct, binary_in, binary_out):
    x = samples(3)
    outputs = None
    if binary_out is not None:
        names = ("probabilities", "label")
        outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in names]
    answer = client.infer("tabular", [infer_input(x, binary_in)], outputs=outputs, request_id="mine")
    check(answer, direct(x))
    assert answer.get_response()["id"] == "mine"
    assert answer.get_response()["model_name"] == "tabular"


def test_outputs_may_come_in_both_forms_in_one_answer(client, direct):
    x = samples(2)
    outputs = [
        triton.InferRequestedOutput("label", binary_data=False),
        triton.InferRequestedOutput("probabilities", binary_data=True),
    ]
    check(client.infer("tabular", [infer_input(x)], outputs=outputs), direct(x))


def test_one_wanted_output_comes_alone(client, direct):
    x = samples(2)
    answer = client.infer("tabular", [infer_input(x)], outputs=[triton.InferRequestedOutput("label")])
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["label"]
    np.testing.assert_array_equal(answer.as_numpy("label"), direct(x)[0])


def test_five_hundred_rows_come_back_in_order(client, direct):
    x = samples(500)
    check(client.infer("tabular", [infer_input(x)]), direct(x))


def test_errors_reach_tritonclient_with_status_and_message(client):
    with pytest.raises(InferenceServerException, match=r"unknown model 'absent'") as caught:
        client.infer("absent", [infer_input(samples(1))])
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="'X'") as caught:
        client.infer("tabular", [infer_input(samples(1)[:, :29])])
    assert caught.value.status() == "400"


def test_a_timeout_in_the_past_is_answered_with_504(client):
    with pytest.raises(InferenceServerException) as caught:
        client.infer("tabular", [infer_input(samples(1))], timeout=1)  # microseconds
    assert caught.value.status() == "504"


async def hammer(address, direct, clients, each):
    async with triton_aio.InferenceServerClient(address, conn_limit=clients) as client:

        async def one(number):
            for _ in range(each):
                x = samples(1 + number % 2)
                check(await client.infer("tabular", [infer_input(x, number % 4 != 3)]), direct(x))

        await asyncio.gather(*[one(number) for number in range(clients)])


def test_sixty_four_clients_at_once_each_get_their_own_rows(either, direct):
    before = httpx.get(f"{either.url}/status", timeout=60, trust_env=False).json()
    asyncio.run(hammer(either.address, direct, 64, 8))
    after = httpx.get(f"{either.url}/status", timeout=60, trust_env=False).json()
    tabular = next(model for model in after["models"] if model["name"] == "tabular")["serving"]
    sizes = set(map(int, tabular["batch_sizes"]))
    assert sizes <= set(map(int, tabular["costs"]["default"]))
    start = next(model for model in before["models"] if model["name"] == "tabular")["serving"]
    assert tabular["ok"] - start["ok"] == 64 * 8
    assert tabular["dispatches"] - start["dispatches"] < 64 * 8
    assert tabular["accepted"] == tabular["ok"] + tabular["failed"] + sum(tabular["dropped"].values())
