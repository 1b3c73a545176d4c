"""Models that share a device too small for all of them, on a real server over HTTP."""

import os
import re

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper, numpy_helper
from prometheus_client.parser import text_string_to_metric_families

from load_tests.models import mlp, write_bundle
from tests.e2e.conftest import running

WIDTH = 256

MANIFEST = 'format_version: "1"\nbatching: {compiled_batch_sizes: [1, 4]}\n'

FACTORS = {f"times{factor}": factor for factor in range(1, 7)}

TOKEN = {"Authorization": "Bearer secret"}

#: Room for two of the models, and for none of the large one. Weights may fill half of the device: what activations
#: were measured to need, which differs by a page from time to time, never decides.
ARENA = 2_700_000

SETTINGS = {
    "RUNTIME_DEVICE_MEMORY_BYTES": ARENA,
    "RUNTIME_WEIGHT_CACHE_FRACTION": 0.5,
    "ENDPOINTS_ADMIN_TOKEN": "secret",
}


def times(factor):
    """`x` FP32 [n, 256] to `y`, which is `factor` times as much: its answers tell which model it is."""
    weights = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32) * factor, "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "times", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Six small models, and a large one."""
    root = tmp_path_factory.mktemp("models")
    for name, factor in FACTORS.items():
        write_bundle(root, name, times(factor), MANIFEST)
    write_bundle(root, "large", mlp((WIDTH, 1024, WIDTH)), MANIFEST)
    return root


@pytest.fixture(scope="module")
def dynamic(cache_dir, bundles):
    """A server that brings weights on demand."""
    with running(cache_dir, bundles, MODELS_INCLUDE="times*", **SETTINGS) as process:
        yield process


@pytest.fixture
def explicit(cache_dir, bundles):
    """A server whose operator brings weights."""
    with running(cache_dir, bundles, MODEL_CONTROL_MODE="explicit", **SETTINGS) as process:
        yield process


@pytest.fixture
def operator():
    """An HTTP client with the token of an operator."""
    with httpx.Client(timeout=60, trust_env=False, headers=TOKEN) as client:
        yield client


def ask(server, name, value=3.0):
    """One request by tritonclient; what the answer is times as much."""
    tensor = triton.InferInput("x", [1, WIDTH], "FP32")
    tensor.set_data_from_numpy(np.full((1, WIDTH), value, np.float32))
    with triton.InferenceServerClient(server.address, network_timeout=60) as client:
        answer = client.infer(name, [tensor]).as_numpy("y")
    assert (answer == answer[0, 0]).all()
    return answer[0, 0] / value


def asked(operator, server, name):
    """The same as plain HTTP, whatever comes of it."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}]}
    return operator.post(f"{server.url}/v2/models/{name}/infer", json=body)


def node(server):
    return httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()


def serving(server, name):
    return next(model["serving"] for model in node(server)["models"] if model["name"] == name)


def resident(server):
    return {model["name"] for model in node(server)["models"] if model["serving"] and model["serving"]["resident"]}


def series(server, name):
    """The samples of a metric that has no labels but model and place: by model."""
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics", timeout=60, trust_env=False).text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels.get("model"): sample.value for sample in samples}


def load(operator, server, name):
    return operator.post(f"{server.url}/v2/repository/models/{name}/load", json={})


def set_residency(operator, server, name, residency):
    return operator.post(f"{server.url}/admin/set_residency", json={"model": name, "residency": residency})


# on demand


def test_more_models_than_fit_are_all_served_right_within_the_budget(dynamic):
    weights = sum(serving(dynamic, name)["weight_bytes"] for name in FACTORS)
    assert weights > 2 * node(dynamic)["weight_on_demand_bytes"] > 0
    for _ in range(3):
        for name, factor in FACTORS.items():
            assert ask(dynamic, name) == factor
            seen = node(dynamic)
            assert 0 < seen["resident_weight_bytes"] <= seen["weight_on_demand_bytes"]
            assert name in resident(dynamic)


def test_loads_and_evictions_are_counted(dynamic):
    names = ("worker_weight_loads_total", "worker_weight_evicts_total", "worker_weight_load_seconds_total")
    before = [series(dynamic, name) for name in names]
    for name in FACTORS:
        ask(dynamic, name)
        ask(dynamic, name)
    after = [series(dynamic, name) for name in names]
    assert sum(after[0].values()) >= sum(before[0].values()) + len(FACTORS) - 2
    assert sum(after[1].values()) >= sum(before[1].values()) + len(FACTORS) - 2
    assert sum(after[2].values()) > sum(before[2].values())
    there = series(dynamic, "worker_model_resident")
    assert {name for name, value in there.items() if value} == resident(dynamic)
    seen = node(dynamic)
    assert series(dynamic, "worker_resident_weight_bytes") == {None: seen["resident_weight_bytes"]}
    assert 0 < seen["weight_hit_rate"] < 1


def test_a_model_that_is_there_is_not_loaded_again(dynamic):
    ask(dynamic, "times1")
    loads = serving(dynamic, "times1")["weight_loads"]
    assert ask(dynamic, "times1") == 1
    assert serving(dynamic, "times1")["weight_loads"] == loads


def test_weights_that_the_server_moves_are_not_the_operators_to_move(dynamic, operator):
    refused = set_residency(operator, dynamic, "times1", "device")
    assert refused.status_code == 409
    assert "MODEL_CONTROL_MODE=explicit" in refused.json()["error"]


def test_compacting_frees_all_and_brings_back_what_is_listed(dynamic, operator):
    ask(dynamic, "times1")
    ask(dynamic, "times2")
    before = node(dynamic)["resident_weight_bytes"]
    compacted = operator.post(f"{dynamic.url}/admin/compact", json={"reload": ["times2"]})
    assert compacted.json() == {"before_bytes": before, "after_bytes": serving(dynamic, "times2")["weight_bytes"]}
    assert resident(dynamic) == {"times2"}
    assert ask(dynamic, "times1") == 1


def test_after_a_restart_models_wait_for_their_first_request(tmp_path, bundles):
    names = ("times1", "times2")
    with running(tmp_path, bundles, MODELS_INCLUDE=",".join(names), **SETTINGS) as server:
        probed = {name: serving(server, name) for name in names}
        assert all(each["weight_loads"] == 1 for each in probed.values())
    with running(tmp_path, bundles, MODELS_INCLUDE=",".join(names), **SETTINGS) as server:
        for name in names:
            seen = serving(server, name)
            assert (seen["resident"], seen["weight_loads"], seen["dispatches"]) == (False, 0, 0)
            assert seen["costs"] == probed[name]["costs"]
        assert ask(server, "times2") == 2
        assert resident(server) == {"times2"}


# by an operator


def test_a_repository_load_makes_a_model_resident(explicit, operator):
    assert asked(operator, explicit, "times3").status_code == 503
    assert load(operator, explicit, "times3").status_code == 200
    assert resident(explicit) == {"times3"}
    assert ask(explicit, "times3") == 3


def test_a_load_that_does_not_fit_fails_naming_the_bytes_and_evicts_nothing(explicit, operator):
    for name in ("times1", "times2"):
        load(operator, explicit, name)
    nbytes = serving(explicit, "times1")["weight_bytes"]
    for name in ("times3", "large"):
        refused = load(operator, explicit, name)
        assert (refused.status_code, refused.json()["code"]) == (503, "out_of_memory")
        numbers = [int(number) for number in re.findall(r"\d+", refused.json()["error"])]
        assert max(numbers) >= nbytes
        assert node(explicit)["weight_on_demand_bytes"] in numbers
    assert resident(explicit) == {"times1", "times2"}
    operator.post(f"{explicit.url}/v2/repository/models/times1/unload", json={})
    assert resident(explicit) == {"times2"}
    assert load(operator, explicit, "times3").status_code == 200
    assert ask(explicit, "times3") == 3


def test_a_model_whose_weights_were_taken_off_is_refused_until_they_are_back(explicit, operator):
    load(operator, explicit, "times4")
    for off in ("system", "unpinned"):
        assert set_residency(operator, explicit, "times4", off).status_code == 200
        assert resident(explicit) == set()
        ready = operator.get(f"{explicit.url}/v2/models/times4/ready")
        for refused in (asked(operator, explicit, "times4"), ready):
            assert (refused.status_code, refused.json()["code"]) == (503, "not_resident")
        assert set_residency(operator, explicit, "times4", "device").status_code == 200
        assert operator.get(f"{explicit.url}/v2/models/times4/ready").status_code == 200
        assert ask(explicit, "times4") == 4


def test_compacting_leaves_what_is_pinned_or_listed_and_refuses_the_rest(explicit, operator):
    for name in ("times1", "times2"):
        load(operator, explicit, name)
    nbytes = serving(explicit, "times1")["weight_bytes"]
    compacted = operator.post(f"{explicit.url}/admin/compact", json={"reload": ["times1"]})
    assert compacted.json() == {"before_bytes": 2 * nbytes, "after_bytes": nbytes}
    assert asked(operator, explicit, "times2").json()["code"] == "not_resident"
    assert ask(explicit, "times1") == 1
    set_residency(operator, explicit, "times2", "device")
    operator.post(f"{explicit.url}/admin/compact", json={})
    assert asked(operator, explicit, "times1").json()["code"] == "not_resident"
    assert ask(explicit, "times2") == 2


# killed


def test_a_server_that_was_killed_while_it_compiled_starts_again_and_leaves_nothing_behind(tmp_path):
    write_bundle(tmp_path / "models", "big", mlp((1024, 4096, 4096, WIDTH)), MANIFEST)
    cache = tmp_path / "cache"
    with running(cache, tmp_path / "models", until="Uvicorn running") as server:
        while not [*cache.glob("scratch/*/weights.bin")]:
            assert httpx.get(f"{server.url}/v2/health/live", timeout=60, trust_env=False).is_success
        server.process.kill()
        server.process.wait()
    left = [*(cache / "scratch").iterdir()]
    assert left
    for path in left:
        os.utime(path, (path.stat().st_mtime - 120,) * 2)
    with running(cache, tmp_path / "models") as server:
        assert serving(server, "big")["resident"]
    assert [*(cache / "scratch").iterdir()] == []
    assert len([*(cache / "entries").iterdir()]) == 1
