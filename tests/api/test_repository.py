"""The model repository API."""

import pytest

from tests.builders import write_identity_bundle

pytestmark = pytest.mark.anyio

INDEX, LOAD, UNLOAD = "/v2/repository/index", "/v2/repository/models/m/load", "/v2/repository/models/m/unload"


async def test_the_index_has_every_model_with_its_state(explicit, stage):
    stage.load("b")
    stage.control.load_model("a", write_identity_bundle(stage.root, "a", manifest="nonsense: 1\n")).exception(30)
    stage.control.announce(["idle"], [], lambda names: None)
    stage.settle()
    index = (await explicit.post(INDEX)).json()
    assert [(each["name"], each["state"]) for each in index] == [
        ("a", "UNAVAILABLE"),
        ("b", "READY"),
        ("idle", "UNAVAILABLE"),
    ]
    assert "nonsense" in index[0]["reason"]
    assert "version" not in index[0]
    assert index[1] == {"name": "b", "version": "1", "state": "READY", "reason": ""}
    assert index[2]["reason"] == "not loaded"
    ready = (await explicit.post(INDEX, json={"ready": True})).json()
    assert [each["name"] for each in ready] == ["b"]


async def test_a_model_is_loaded_reloaded_and_unloaded(explicit, stage):
    write_identity_bundle(stage.root)
    loaded = await explicit.post(LOAD)
    assert (loaded.status_code, loaded.content) == (200, b"")
    first = stage.registry.resolve("m").model_id
    assert (await explicit.infer([5])).json()["outputs"][0]["data"] == [5, 5, 5]
    assert (await explicit.post(LOAD, json={})).status_code == 200  # as a known client sends it
    assert stage.registry.resolve("m").model_id != first
    unloaded = await explicit.post(UNLOAD, json={"parameters": {"unload_dependents": False}})
    assert (unloaded.status_code, unloaded.content) == (200, b"")
    assert (await explicit.infer([5])).status_code == 503
    assert (await explicit.post(INDEX)).json() == [{"name": "m", "state": "UNAVAILABLE", "reason": "unloaded"}]
    assert (await explicit.post(UNLOAD)).status_code == 200
    assert (await explicit.post(LOAD)).status_code == 200
    assert (await explicit.infer([5])).status_code == 200


async def test_a_failed_load_says_why_and_so_does_the_index(explicit, stage):
    write_identity_bundle(stage.root, manifest="nonsense: 1\n")
    answer = await explicit.post(LOAD)
    assert (answer.status_code, answer.json()["code"]) == (422, "bundle_invalid")
    assert "nonsense" in answer.json()["error"]
    [entry] = (await explicit.post(INDEX)).json()
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", answer.json()["error"])


@pytest.mark.parametrize("name", ["absent", "..", "%2e%2e", "..%5cm", "%00", "m%20"])
@pytest.mark.parametrize("action", ["load", "unload"])
async def test_a_name_without_a_bundle_is_not_found(explicit, stage, name, action):
    write_identity_bundle(stage.root)
    answer = await explicit.post(f"/v2/repository/models/{name}/{action}")
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "code"}


@pytest.mark.parametrize("body", [{"parameters": {"config": "{}"}}, {"parameters": {"file:1/model.onnx": "QQ=="}}])
async def test_load_parameters_are_refused_rather_than_overlooked(explicit, stage, body):
    write_identity_bundle(stage.root)
    answer = await explicit.post(LOAD, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert next(iter(body["parameters"])) in answer.json()["error"]
    assert stage.backend.compiled == []


@pytest.mark.parametrize("parameters", [False, 0, "", [], None, "config"])
async def test_load_parameters_that_are_no_object_are_refused_rather_than_overlooked(explicit, stage, parameters):
    write_identity_bundle(stage.root)
    answer = await explicit.post(LOAD, json={"parameters": parameters})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert stage.backend.compiled == []


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_in_a_self_managed_mode_nobody_loads_or_unloads(api, stage, path):
    stage.load()
    answer = await api.post(path)
    assert (answer.status_code, answer.json()["code"]) == (409, "unsupported")
    assert "model_control_mode=explicit; in this one add or remove its directory" in answer.json()["error"]
    assert (await api.infer([1])).status_code == 200


@pytest.mark.parametrize("path", [INDEX, LOAD, UNLOAD])
async def test_another_method_is_not_allowed(explicit, path):
    answer = await explicit.get(path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
