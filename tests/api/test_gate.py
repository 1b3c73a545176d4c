"""The gate before the routes: no path, however written, gets around it."""

import pytest

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
