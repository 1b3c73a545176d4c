"""The node's own routes, over workers that only note what they are asked."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from app.api.access import Access
from app.api.bodies import MAX_BYTES
from app.scaleout import control_app
from app.scaleout.fleet import Fleet
from app.scaleout.workers import Worker

pytestmark = pytest.mark.anyio

STATISTICS: dict[str, list[Any]] = {"model_stats": []}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@dataclass
class Stage:
    """A node with two workers, of which those in `hanging` answer nobody."""

    draining: bool = False
    hanging: set[int] = field(default_factory=set)
    asked: list[httpx.Request] = field(default_factory=list)

    def __post_init__(self):
        workers = [Worker("w0", "w0", "cpu", 1), Worker("w1", "w1", "cpu", 2)]
        self.fleet = Fleet(workers, "secret\n", httpx.MockTransport(self.answer))
        access = Access(None, "secret")
        app = control_app.create(self, self.fleet, access, None, "round_robin")
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node")

    def processes(self):
        return []

    async def answer(self, request):
        self.asked.append(request)
        if request.url.port in self.hanging:
            await asyncio.Event().wait()
        return httpx.Response(200, json=STATISTICS)


@pytest.fixture
async def stage():
    one = Stage()
    yield one
    await one.client.aclose()
    await one.fleet.close()


async def test_it_is_ready_as_soon_as_one_worker_is_whoever_hangs(stage):
    stage.hanging = {1}
    assert (await asyncio.wait_for(stage.client.get("/v2/health/ready"), 60)).status_code == 200
    stage.draining = True
    assert (await stage.client.get("/v2/health/ready")).status_code == 503


async def test_a_worker_is_asked_for_the_very_path_with_the_callers_own_token(stage):
    headers = {b"x-request-id": b"\xe9", b"authorization": b"Bearer mine", b"cookie": b"no"}
    path = "/v2/models/a%00%3Fb%2F/stats?c=%20"
    assert (await stage.client.get(path, headers=headers)).status_code == 200
    for request in stage.asked:
        assert request.url.raw_path == path.encode()
        told = dict(request.headers.raw)
        assert (told[b"authorization"], told[b"x-request-id"]) == (b"Bearer mine", b"\xe9")
        assert b"cookie" not in told


async def test_below_a_prefix_workers_are_asked_for_what_is_behind_it(stage):
    transport = httpx.ASGITransport(stage.client._transport.app, root_path="/models%20")
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        assert (await client.get("/models%20/v2/models/a%2Fb/stats?c=%20")).status_code == 200
    assert {request.url.raw_path for request in stage.asked} == {b"/v2/models/a%2Fb/stats?c=%20"}


async def test_what_no_client_library_can_ask_for_is_the_callers_fault(stage):
    """To a worker the whole address is a little longer."""
    answer = await stage.client.get("/v2/models/" + "a" * 65_505 + "/stats")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert stage.asked == []


async def test_the_nodes_own_questions_carry_its_token_without_the_end_of_its_line(stage):
    await stage.client.get("/status")
    assert {request.headers["authorization"] for request in stage.asked} == {"Bearer secret"}


async def test_no_body_is_longer_than_what_the_routes_of_workers_take(stage):
    """Nobody needs a token for this one."""
    path = "/v2/systemsharedmemory/status"
    answer = await stage.client.request("GET", path, content=b"x" * (MAX_BYTES + 1))
    assert (answer.status_code, answer.json()["code"], stage.asked) == (413, "payload_too_large", [])
    assert (await stage.client.request("GET", path, content=b"x" * MAX_BYTES)).status_code == 200
    assert [len(request.content) for request in stage.asked] == [MAX_BYTES] * 2


async def test_metrics_call_a_device_what_its_worker_calls_it(stage, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    stage.fleet.workers = (Worker("w0", "a", "0", 1), Worker("w1", "b", "1", 2))
    text = (await stage.client.get("/metrics")).text
    assert 'cluster_worker_up{gpu="5",worker="a"} 1' in text
    assert 'cluster_worker_up{gpu="6",worker="b"} 1' in text


async def test_a_wrong_method_is_refused_in_the_form_of_all_refusals(stage):
    answer = await stage.client.patch("/admin/compact", headers={"Authorization": "Bearer secret"})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]
