"""The OpenAPI document is true: of every route, of how it refuses, and of the token that it asks for."""

import re
import threading

import pytest
from fastapi.openapi.utils import get_openapi

from app.api import openapi
from app.api.access import Door, door_of

pytestmark = pytest.mark.anyio


async def document(api):
    return (await api.get("/openapi.json")).json()


def operations(made):
    """Path, method and what the document says of them."""
    return [(path, method, told) for path, methods in made["paths"].items() for method, told in methods.items()]


def references(value):
    """Every `$ref` in a part of the document."""
    if isinstance(value, dict):
        return [each for name, part in value.items() for each in ([part] if name == "$ref" else references(part))]
    return [each for part in value for each in references(part)] if isinstance(value, list) else []


async def test_it_is_made_once_and_not_on_the_event_loop(api, monkeypatch):
    made_by = []

    def make(**options):
        made_by.append(threading.current_thread().name)
        return get_openapi(**options)

    monkeypatch.setattr(openapi, "get_openapi", make)
    assert await document(api) == await document(api)
    assert [name.startswith("hook") for name in made_by] == [True]


async def test_every_reference_leads_somewhere(api):
    made = await document(api)
    for reference in references(made):
        place = made
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


async def test_every_refusal_has_the_one_form_but_for_health_and_readiness(api):
    for path, _, told in operations(await document(api)):
        for status, answer in told["responses"].items():
            if status.startswith("2") or (status == "503" and path.endswith(("/live", "/ready"))):
                continue
            assert answer["content"]["application/json"]["schema"]["$ref"] == "#/components/schemas/Error"


async def test_what_stands_in_the_path_is_the_only_parameter_that_comes_from_it(api):
    for path, _, told in operations(await document(api)):
        named = {each["name"] for each in told.get("parameters", ()) if each["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))
        assert all(each["name"] == "limit" for each in told.get("parameters", ()) if each["in"] == "query")


@pytest.mark.parametrize("token", [None, "the-api-token"])
async def test_a_route_says_which_token_it_asks_for_and_asks_for_it(make_api, stage, token):
    stage.load()
    api = make_api(api_token=token)
    for path, method, told in operations(await document(api)):
        door = door_of(path, method.upper())
        guarded = door is Door.ADMIN or (door is Door.API and token is not None)
        assert [next(iter(each)) for each in told.get("security", ())] == (
            [] if not guarded else ["admin"] if door is Door.ADMIN else ["api", "admin"]
        )
        assert ("401" in told["responses"]) is guarded
        async with api.client() as client:
            answer = await client.request(method, path.replace("{model}", "m").replace("{version}", "1"))
        assert (answer.status_code == 401) is guarded


async def test_what_is_found_is_answered_with_a_documented_status_and_type(api, stage):
    stage.load()
    for path, method, told in operations(await document(api)):
        ask = api.get if method == "get" else api.post
        for name in ("m", "absent"):
            answer = await ask(path.replace("{model}", name).replace("{version}", "1"))
            answers = told["responses"][str(answer.status_code)].get("content", {})
            assert answer.headers.get("content-type", "").partition(";")[0] in (answers or [""])


async def test_no_version_is_read_from_the_query(api, stage):
    stage.load()
    for path in ("/v2/models/m", "/v2/models/m/config", "/v2/models/m/stats", "/v2/models/m/ready"):
        assert (await api.get(f"{path}?version=99")).status_code == 200
        assert (await api.get(path.replace("/m", "/m/versions/99"))).status_code == 404


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PATCH"])
async def test_a_wrong_method_is_told_every_right_one(api, method):
    for path, methods in (await document(api))["paths"].items():
        async with api.client({"Authorization": "Bearer the-admin-token"}) as client:
            answer = await client.request(method, path.replace("{model}", "m").replace("{version}", "1"))
        assert answer.status_code == 405
        allowed = answer.headers["allow"].split(", ")
        assert allowed == sorted(allowed)
        assert set(allowed) - {"HEAD"} == {each.upper() for each in methods} - {"HEAD"}, path


async def test_the_parts_of_the_page_can_only_be_read(api):
    for path in ("/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css"):
        answer = await api.post(path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert "GET" in answer.headers["allow"]


async def test_the_page_of_the_document_names_no_other_host(api):
    page = await api.get("/docs")
    assert page.status_code == 200
    assert "//" not in re.sub(r"^\s*//.*|<!--.*?-->", "", page.text, flags=re.MULTILINE)
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(parts) == 3
    for path in parts:
        assert (await api.get(path)).status_code == 200
    assert "validatorUrl" in page.text  # null: else the page asks a service what it thinks of the document
    assert (await api.get("/redoc")).status_code == 404


async def test_the_page_and_its_parts_are_behind_the_same_door(make_api):
    api = make_api(api_token="the-api-token")
    page = await api.get("/docs")
    async with api.client() as client:
        for path in ("/docs", "/openapi.json", *re.findall(r'(?:src|href)="([^"]+)"', page.text)):
            assert (await client.get(path)).status_code == 401
