"""Malformed requests against a real process: each is refused by name, and its neighbours are served."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.api.malformed import MALFORMED, VALID, VALID_BINARY
from tests.e2e.conftest import running


def four():
    """The model that the table of malformed requests is addressed to: each input is an output."""
    tensors: list[tuple[str, str, int, list[str | int | None]]] = [
        ("x", "y", TensorProto.FLOAT, ["n", 3]),
        ("s", "t", TensorProto.STRING, ["n", 2]),
        ("k", "l", TensorProto.INT8, ["n", 2]),
        ("b", "c", TensorProto.BOOL, ["n"]),
    ]
    graph = helper.make_graph(
        [helper.make_node("Identity", [into], [out]) for into, out, _, _ in tensors],
        "four",
        [helper.make_tensor_value_info(into, kind, shape) for into, _, kind, shape in tensors],
        [helper.make_tensor_value_info(out, kind, shape) for _, out, kind, shape in tensors],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundles")
    (root / "four").mkdir()
    (root / "four" / "model.onnx").write_bytes(four().SerializeToString())
    return root


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "asgi"])
def strict(request, cache_dir, model_dirs):
    with running(
        cache_dir, model_dirs, ENDPOINTS_FAST_PATH=request.param, ENDPOINTS_MAX_BODY_BYTES=1_000_000
    ) as server:
        yield server


PATH = "/v2/models/four/infer"


def headers(header_length):
    return {} if header_length is None else {"Inference-Header-Content-Length": header_length}


def good_request(row):
    """A request for row `row`, and what its answer must hold."""
    document = json.loads(VALID)
    document["inputs"][0]["data"] = [row, row + 0.5, -row]
    document["inputs"][1]["data"] = [f"text {row}", "é"]
    return document


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_each_malformed_request_is_refused_by_name_while_its_neighbour_is_served(strict, case):
    with httpx.Client(base_url=strict.url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(3) as threads:
        before = threads.submit(client.post, PATH, json=good_request(1))
        bad = threads.submit(client.post, PATH, content=case.body, headers=headers(case.header_length))
        after = threads.submit(client.post, PATH, json=good_request(2))
        refused = bad.result()
        assert refused.status_code == 400, refused.text
        assert set(refused.json()) == {"error", "code"}
        assert case.names in refused.json()["error"]
        for row, answer in ((1, before.result()), (2, after.result())):
            assert answer.status_code == 200
            outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
            assert outputs["y"] == [row, row + 0.5, -row]
            assert outputs["t"] == [f"text {row}", "é"]


def test_there_are_fifty_kinds():
    assert len(MALFORMED) >= 50


def test_the_valid_ones_are_served(strict):
    with httpx.Client(base_url=strict.url, timeout=60, trust_env=False) as client:
        assert client.post(PATH, content=VALID).status_code == 200
        body, header_length = VALID_BINARY[0], VALID_BINARY[1]
        assert client.post(PATH, content=body, headers=headers(str(header_length))).status_code == 200


def test_five_hundred_rows_on_the_default_sizes_are_one_answer_in_order(strict):
    rows = 500
    values = np.arange(rows * 3, dtype=np.float32)
    document = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": values.tolist()},
            {"name": "s", "datatype": "BYTES", "shape": [rows, 2], "data": [str(i) for i in range(rows * 2)]},
            {"name": "k", "datatype": "INT8", "shape": [rows, 2], "data": [i % 100 for i in range(rows * 2)]},
            {"name": "b", "datatype": "BOOL", "shape": [rows], "data": [i % 3 == 0 for i in range(rows)]},
        ]
    }
    answer = httpx.post(strict.url + PATH, json=document, timeout=60, trust_env=False).json()
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    assert outputs["y"] == values.tolist()
    assert outputs["t"] == [str(i) for i in range(rows * 2)]
    assert outputs["l"] == [i % 100 for i in range(rows * 2)]
    assert outputs["c"] == [i % 3 == 0 for i in range(rows)]


def test_a_truncated_body_is_no_request_and_harms_nobody(strict):
    with socket.create_connection(("127.0.0.1", strict.port)) as raw:
        raw.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{" % PATH.encode())
    assert httpx.post(strict.url + PATH, content=VALID, timeout=60, trust_env=False).status_code == 200


def test_a_body_above_the_limit_is_refused_whether_announced_or_not(strict):
    large = b" " * 1_000_001
    announced = httpx.post(strict.url + PATH, content=large, timeout=60, trust_env=False)
    assert (announced.status_code, announced.json()["code"]) == (413, "payload_too_large")
    chunked = httpx.post(
        strict.url + PATH, content=iter([large[:600_000], large[600_000:]]), timeout=60, trust_env=False
    )
    assert (chunked.status_code, chunked.json()["code"]) == (413, "payload_too_large")
