"""The application as a whole: every answer has its form, also where no route gave it."""

import orjson
import pytest

from tests.builders import rows_of

pytestmark = pytest.mark.anyio


def refused(answer):
    """Status and code of a refusal in the one form."""
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error", "code"}
    assert all(isinstance(value, str) for value in answer.json().values())
    return answer.status_code, answer.json()["code"]


async def test_the_root_says_what_this_is_and_where_to_look(api):
    links = (await api.get("/")).json()
    assert links["name"] == "inference-server"
    for path in (links["console"], links["docs"], links["status"], links["v2"], "/metrics", "/openapi.json"):
        assert (await api.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/nowhere", "/v2/models/m/infer/x", "/v2/models//infer", "/v2/models/m/generate"])
async def test_an_unknown_route_is_not_found(api, path):
    assert refused(await api.post(path, content=b"{}")) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/m/infer", "POST"),
        ("DELETE", "/v2/models/m/versions/1/infer", "POST"),
        ("POST", "/v2", "GET"),
        ("TRACE", "/v2", "GET"),
        ("PUT", "/metrics", "GET"),
        ("GET", "/admin/set_policy", "POST"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(api, method, path, allowed):
    async with api.client({"Authorization": "Bearer the-admin-token"}) as client:
        answer = await client.request(method, path)
    assert refused(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


async def test_a_crash_tells_no_internals(api, stage):
    def crash():
        raise RuntimeError("secret detail")

    stage.backend.memory = crash
    answer = await api.get("/status")
    assert refused(answer) == (500, "internal")
    assert "secret" not in answer.text


async def test_an_inference_request_takes_the_asgi_door(api, stage):
    stage.load()
    answer = await api.infer([1, 2], id="mine")
    assert answer.status_code == 200
    assert answer.json()["id"] == "mine"
    assert answer.json()["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [1, 1, 1, 2, 2, 2]},
    ]
    assert refused(await api.infer([1], name="absent")) == (404, "model_not_found")
    assert refused(await api.post("/v2/models/m/infer", content=b"{")) == (400, "invalid_request")


async def test_a_body_above_the_limit_is_refused(make_api, stage):
    stage.load()
    api = make_api(max_body_bytes=100)
    assert refused(await api.post("/v2/models/m/infer", content=b" " * 101)) == (413, "payload_too_large")

    async def pieces():
        for _ in range(3):
            yield b" " * 40

    assert refused(await api.post("/v2/models/m/infer", content=pieces())) == (413, "payload_too_large")
    account = stage.registry.resolve("m").account
    assert account.in_flight == 0


async def test_every_route_that_takes_a_body_bounds_it(make_api, stage):
    stage.load()
    api = make_api(explicit=True, max_body_bytes=1000, max_bytes=3 << 20)
    paths = (await api.get("/openapi.json")).json()["paths"]
    routes = [path.replace("{model}", "m").replace("{version}", "1") for path in paths if "post" in paths[path]]
    assert len(routes) > 7
    for path in routes:
        assert refused(await api.post(path, content=b" " * (2 << 20))) == (413, "payload_too_large"), path


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nowhere"), ("DELETE", "/v2"), ("GET", "/v2/models/absent"), ("GET", "/v2")]
)
async def test_every_answer_has_a_request_id_the_callers_or_one_of_its_own(api, method, path):
    async with api.client() as client:
        echoed = await client.request(method, path, headers={"X-Request-Id": "mine"})
        made = [(await client.request(method, path)).headers["x-request-id"] for _ in range(2)]
    assert echoed.headers["x-request-id"] == "mine"
    assert made[0] != made[1]


async def test_a_crash_names_the_request_and_tells_nothing(api, stage, monkeypatch):
    def crash(*_):
        raise RuntimeError("a secret")

    monkeypatch.setattr(type(stage.engine), "alive", property(crash))
    async with api.client({"X-Request-Id": "mine"}) as client:
        answer = await client.get("/v2/health/live")
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert answer.json() == {"error": "internal error (request mine)", "code": "internal"}


async def test_every_documented_route_has_a_summary(api):
    paths = (await api.get("/openapi.json")).json()["paths"]
    assert all(operation["summary"] for path in paths.values() for operation in path.values())


async def test_a_json_part_above_its_limit_is_refused_and_pointed_to_the_binary_form(make_api, stage):
    stage.load("m")
    api = make_api(max_json_bytes=300)
    large = await api.infer([1.0] * 20)
    assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")
    assert "binary" in large.json()["error"]
    assert (await api.infer([1.0])).status_code == 200


async def test_binary_tensors_do_not_count_as_json(make_api, stage):
    stage.load("m")
    api = make_api(max_json_bytes=300)
    values = rows_of(0, 40)
    tensor = {"name": "x", "shape": [40, 3], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
    head = orjson.dumps({"inputs": [tensor]})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = await api.post("/v2/models/m/infer", content=head + values.tobytes(), headers=headers)
    assert answer.status_code == 200
    padded = orjson.dumps({"inputs": [tensor], "more": "x" * 300})
    headers = {"Inference-Header-Content-Length": str(len(padded))}
    answer = await api.post("/v2/models/m/infer", content=padded + values.tobytes(), headers=headers)
    assert answer.status_code == 413
