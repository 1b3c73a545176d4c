"""The gate before the routes: no path, however written, gets around it."""

import pytest

from app.api.access import OPEN_PATHS, Access, Door, door_of
from app.api.gate import AccessGate
from tests.api.conftest import ADMIN

pytestmark = pytest.mark.anyio

API = {"Authorization": "Bearer the-api-token"}

PATHS = [
    ("GET", "/admin/status"),
    ("GET", "//admin/status"),
    ("GET", "/admin//status"),
    ("GET", "/admin/status/"),
    ("GET", "/%61dmin/status"),
    ("GET", "/admin%2Fstatus"),
    ("POST", "/admin/set_policy"),
    ("POST", "/v2/repository/models/m/load"),
    ("POST", "/v2/repository/models/m/unload"),
    ("POST", "/v2/repository/models/m/unload/"),
    ("POST", "/v2/repository/%6dodels/m/unload"),
    ("GET", "/admin"),
    ("PUT", "/admin/anything"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("root_path", ["", "/prefix", "/admin/x"])
async def test_the_admin_door_asks_for_the_admin_token(make_api, method, path, root_path):
    """Also where the server mounts the application under a prefix."""
    api = make_api(api_token="the-api-token")
    for headers, status in ((None, 401), (API, 403)):
        async with api.client(headers, root_path) as client:
            answer = await client.request(method, f"http://test{root_path}{path}")
            assert (answer.status_code, set(answer.json())) == (status, {"error", "code"})
    async with api.client(ADMIN, root_path) as client:
        assert (await client.request(method, f"http://test{root_path}{path}")).status_code not in (401, 403)


async def status_of(api, headers, method, path):
    async with api.client(headers) as client:
        return (await client.request(method, path)).status_code


async def test_every_documented_route_asks_for_its_token(make_api):
    """A route that is new is behind a token, whoever forgets to think of it."""
    api = make_api(api_token="the-api-token")
    paths = (await api.get("/openapi.json")).json()["paths"]
    routes = [(method.upper(), path) for path, operations in paths.items() for method in operations]
    routes += [("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/v2/")]
    assert len(routes) > 15
    for method, template in routes:
        path, door = template.replace("{model}", "m").replace("{version}", "1"), door_of(template, method)
        if template in (*OPEN_PATHS, "/console"):  # a page that tells nothing: tests/api/test_console.py
            assert await status_of(api, None, method, path) in (200, 503), template
            continue
        assert await status_of(api, None, method, path) == 401, template
        assert (await status_of(api, API, method, path) == 403) is (door is Door.ADMIN), template
        assert await status_of(api, ADMIN, method, path) not in (401, 403), template
        changes = method != "GET" and not path.endswith(("/infer", "/index"))
        assert (door is Door.ADMIN) is (changes or path.startswith("/admin/")), template


@pytest.mark.parametrize("root_path", ["", "/prefix"])
async def test_probes_and_metrics_are_open_also_under_a_prefix(make_api, root_path):
    async with make_api(api_token="the-api-token").client(root_path=root_path) as client:
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            assert (await client.get(f"http://test{root_path}{path}")).status_code in (200, 503)


async def test_a_refusal_says_how_to_ask(make_api):
    async with make_api(api_token="the-api-token").client() as client:
        answer = await client.get("/v2")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["code"] == "unauthorized"


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/admin/set_policy"])
async def test_a_refusal_has_a_request_id_the_callers_or_one_of_its_own(make_api, path):
    async with make_api(api_token="the-api-token").client() as client:
        echoed = await client.post(path, headers={"X-Request-Id": "mine"})
        long = await client.post(path, headers={"X-Request-Id": "x" * 5000})
        made = [(await client.post(path)).headers["x-request-id"] for _ in range(2)]
    assert echoed.headers["x-request-id"] == "mine"
    assert long.headers["x-request-id"] == "x" * 256
    assert made[0] != made[1]


def refusals(caplog):
    return [record.facts for record in caplog.records if record.name == "app.api.journal"]


async def test_a_refused_inference_request_is_told_as_the_other_door_tells_it(make_api, stage, caplog):
    stage.load()
    api = make_api(api_token="the-api-token")
    async with api.client({"X-Request-Id": "mine"}) as client:
        answer = await client.post("/v2/models/m/infer", content=b"{}")
    assert (answer.status_code, answer.headers["x-request-id"]) == (401, "mine")
    [facts] = refusals(caplog)
    assert (facts["model"], facts["code"], facts["request_id"]) == ("m", "unauthorized", "mine")
    [request] = (await api.get("/admin/recent")).json()["requests"]
    assert (request["model"], request["code"]) == ("m", "unauthorized")


async def test_a_refusal_of_any_other_route_is_a_line_and_not_one_for_each(make_api, caplog):
    api = make_api(api_token="the-api-token")
    async with api.client({"X-Request-Id": "mine"}) as client:
        for path in ("/admin/status", "/v2/models/" + "x" * 1000, "/status"):
            assert (await client.get(path)).status_code == 401
        assert (await client.get("/v2", headers={"Authorization": "Bearer wrong"})).status_code == 403
    first, second = refusals(caplog)
    assert first == {"method": "GET", "path": "/admin/status", "code": "unauthorized", "request_id": "mine"}
    assert (second["path"], second["code"]) == ("/v2", "forbidden")


async def test_headers_may_be_pairs_of_any_kind():
    """ASGI asks for no tuples, and some servers give lists."""
    seen = []

    async def application(scope, receive, send):
        seen.append(scope["headers"])

    async def nothing(message=None):
        return {}

    pairs = [[b"authorization", b"Bearer the-api-token"], [b"x-request-id", b"mine"]]
    scope = {"type": "http", "method": "GET", "path": "/v2", "root_path": "", "headers": pairs}
    await AccessGate(application, Access("the-api-token", "the-admin-token"))(scope, nothing, nothing)
    assert seen == [[tuple(pair) for pair in pairs]]
