"""Status and admin commands."""

import json

import pytest

from app.domain.config import ModelPolicy

pytestmark = pytest.mark.anyio

SET = "/admin/set_policy"


@pytest.mark.parametrize("path", ["/status", "/admin/status"])
async def test_status_tells_the_node_and_its_models(api, stage, path):
    stage.load()
    await api.infer([1, 2, 3])
    stage.settle()
    answer = await api.get(path)
    assert answer.headers["content-type"] == "application/json"
    status = answer.json()
    assert (status["discipline"], status["backend"], status["alive"]) == ("fifo", "fake", True)
    [model] = status["models"]
    assert model["serving"]["costs"].keys() == {"default"}
    assert model["serving"]["costs"]["default"].keys() == {"1", "2", "4"}
    assert (model["name"], model["state"], model["reason"]) == ("m", "READY", "")
    serving = model["serving"]
    assert (serving["dispatches"], serving["rows"], serving["padded_rows"], serving["ok"]) == (1, 3, 1, 1)
    assert serving["batch_axis"] == {"input": "x", "axis": 1}


async def test_status_says_that_the_server_drains(api, stage):
    assert (await api.get("/status")).json()["draining"] is False
    stage.readiness.draining = True
    assert (await api.get("/status")).json()["draining"] is True


async def test_a_policy_changes_in_the_fields_that_are_sent(api, stage):
    stage.policies["m"] = ModelPolicy(weight=2, max_wait_ms=3)
    stage.load()
    answer = await api.post(SET, json={"model": "m", "weight": 5, "sizing": "fill"})
    assert answer.status_code == 200
    expected = ModelPolicy(weight=5, max_wait_ms=3, sizing="fill")
    assert answer.json() == expected.model_dump(mode="json")
    assert stage.registry.resolve("m").policy == expected
    await api.post(SET, json={"model": "m", "max_batch_size": 2})
    assert stage.registry.resolve("m").policy.max_batch_size == 2
    await api.post(SET, json={"model": "m", "max_batch_size": None})
    assert stage.registry.resolve("m").policy == expected


async def test_a_policy_without_changes_is_told_as_it_is(api, stage):
    stage.load()
    answer = await api.post(SET, json={"model": "m"})
    assert answer.json() == ModelPolicy().model_dump(mode="json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": 0}, "field 'weight': Input should be greater than 0, got 0"),
        ({"weight": True}, "field 'weight': Input should be a valid number, got True"),
        ({"weight": "2"}, "field 'weight': Input should be a valid number, got '2'"),
        ({"weight": None}, "field 'weight'"),
        ({"max_wait_ms": 1e9}, "field 'max_wait_ms': Input should be less than or equal to 86400000, got 1000000000"),
        ({"max_batch_size": 1.5}, "field 'max_batch_size'"),
        ({"residency": "host"}, "'unpinned', 'system' or 'device'"),
        ({"wieght": 1}, "no field 'wieght': known are weight, "),
        ({"padding": "x" * 1000}, "field 'padding'"),
        ({"model": 3}, "field 'model'"),
    ],
)
async def test_a_bad_policy_is_refused_by_field_value_and_what_is_allowed(api, stage, change, message):
    stage.load()
    answer = await api.post(SET, json={"model": "m", **change})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert message in answer.json()["error"]
    assert len(answer.content) < 500
    assert stage.registry.resolve("m").policy == ModelPolicy()


async def test_a_policy_needs_a_model(api):
    answer = await api.post(SET, json={"weight": 1})
    assert (answer.status_code, "'model'" in answer.json()["error"]) == (400, True)


async def test_a_policy_of_an_unknown_model_is_not_found(api, stage):
    answer = await api.post(SET, json={"model": "absent", "weight": 1})
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    stage.control.announce(["idle"], [], lambda names: None)
    stage.settle()
    assert (await api.post(SET, json={"model": "idle", "weight": 1})).status_code == 503


async def test_the_documentation_describes_the_bodies(api):
    paths = (await api.get("/openapi.json")).json()
    body = paths["paths"][SET]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"model", *ModelPolicy.model_fields}
    assert body["required"] == ["model"]
    for name in [each.split('"')[0] for each in json.dumps(paths).split("#/components/schemas/")[1:]]:
        assert name in paths["components"]["schemas"]


async def test_weights_are_brought_before_they_are_asked_for(api, stage):
    stage.load()
    answer = await api.post("/admin/prefetch", json={"models": ["m"]})
    assert (answer.status_code, answer.json()) == (200, {"models": ["m"]})
    assert (await api.post("/admin/prefetch", json={"models": ["absent"]})).status_code == 404
    assert (await api.post("/admin/prefetch", json={})).status_code == 400


# what happened just now, and the settings


async def test_the_latest_requests_and_dispatches_are_told_as_facts(api, stage):
    stage.load()
    await api.infer([1, 2, 3])
    await api.infer([])
    stage.settle()
    recent = (await api.get("/admin/recent")).json()
    [answered, refused] = recent["requests"]
    assert (answered["model"], answered["code"], answered["rows"]) == ("m", None, 3)
    assert (answered["batch_rows"], answered["batch_size"], answered["timeout"]) == (3, 4, None)
    assert refused["code"] == "empty_batch"
    assert sum(answered["stages"].values()) <= answered["seconds"]
    [dispatch] = recent["dispatches"]
    assert (dispatch["model"], dispatch["rows"], dispatch["size"], dispatch["requests"]) == ("m", 3, 4, 1)
    assert answered["at"] <= dispatch["at"] <= answered["at"] + answered["seconds"]
    assert dispatch["seconds"] == pytest.approx(answered["stages"]["compute"])


async def test_as_many_are_told_as_are_asked_for_the_latest(api, stage):
    stage.load()
    for rows in ([1], [1, 2], [1, 2, 3]):
        await api.infer(rows)
    recent = (await api.get("/admin/recent?limit=2")).json()
    assert [each["rows"] for each in recent["requests"]] == [2, 3]
    assert [each["rows"] for each in recent["dispatches"]] == [2, 3]


@pytest.mark.parametrize("limit", ["0", "10001", "x"])
async def test_a_number_that_is_none_or_too_great_is_refused(api, limit):
    assert (await api.get(f"/admin/recent?limit={limit}")).status_code == 400


async def test_the_settings_are_for_the_admin_only(make_api):
    settings = {"log_format": {"value": "json", "source": "environment"}}
    api = make_api(settings=settings)
    assert (await api.get("/admin/status")).json()["settings"] == settings
    assert "settings" not in (await api.get("/status")).json()


async def test_a_changed_policy_changes_its_digest_in_status_and_metadata(api, stage):
    stage.load()

    async def digests():
        [model] = (await api.get("/status")).json()["models"]
        return model["serving"]["policy_digest"], (await api.get("/v2/models/m")).json()["properties"]["policy_digest"]

    before = await digests()
    assert before[0] == before[1]
    await api.post(SET, json={"model": "m", "weight": 2})
    after = await digests()
    assert after[0] == after[1] != before[0]
