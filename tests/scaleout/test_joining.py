"""Which workers are fit to have models placed on them."""

import asyncio
import json

import httpx
import pytest

from app.scaleout.fleet import Fleet
from app.scaleout.joining import ClusterError, facts_of, join
from app.scaleout.workers import Worker

pytestmark = pytest.mark.anyio

WORKERS = [Worker("w0", "w0", "cpu", 1), Worker("w1", "w1", "cpu", 2)]


@pytest.fixture
def anyio_backend():
    return "asyncio"


def model(name, **serving):
    told = {
        "accepted": 0, "ok": 0, "failed": 0, "compute_seconds": 0.0, "weight_bytes": 7, "max_batch_size": None,
        "costs": {"default": {"1": 0.1, "8": 0.2}}, **serving,
    }  # fmt: skip
    return {"name": name, "serving": told}


def status(*models, discipline="fifo"):
    return {"discipline": discipline, "models": [model(each) if isinstance(each, str) else each for each in models]}


def fleet(*statuses, ready=lambda port: True):
    """Workers that answer so; None for one that nobody reaches."""

    def answer(request):
        told = statuses[request.url.port - 1]
        if told is None:
            raise httpx.ConnectError("refused")
        if request.url.path == "/v2/health/ready":
            return httpx.Response(200 if ready(request.url.port) else 503)
        return httpx.Response(200, text=json.dumps(told))

    return Fleet(WORKERS, "t", httpx.MockTransport(answer))


async def complaint(workers, seconds=0.0):
    with pytest.raises(ClusterError) as caught:
        await join(workers, seconds)
    return str(caught.value)


async def test_lpt_040_workers_that_agree_are_joined():
    assert (await join(fleet(status("a"), status("a")), 0.0)).keys() == {"w0", "w1"}


async def test_lpt_040_edf_is_allowed_and_fair_is_named():
    edf = status("a", discipline="edf")
    assert await join(fleet(edf, edf), 0.0)
    said = await complaint(fleet(edf, status("a", discipline="fair")))
    assert said == "worker w1 runs fair: lpt_packing needs scheduler.discipline fifo or edf"


async def test_lpt_040_different_models_are_named():
    said = await complaint(fleet(status("a", "b"), status("a", "c")))
    assert said == "workers w0 and w1 have different models: b, c"


async def test_lpt_040_a_worker_that_is_not_reached_is_named_at_once():
    assert (await complaint(fleet(status("a"), None))).startswith(
        "worker w1 at 127.0.0.1:2 is not ready after 0 s: Conn"
    )


async def test_lpt_040_or_after_the_time_that_it_was_given():
    begun = asyncio.get_running_loop().time()
    assert "after 0.3 s" in await complaint(fleet(status("a"), None), 0.3)
    assert asyncio.get_running_loop().time() - begun >= 0.25


async def test_a_worker_that_starts_late_is_waited_for():
    asked = []

    def ready(port):
        asked.append(port)
        return len(asked) > 3

    assert await join(fleet(status("a"), status("a"), ready=ready), 60.0)


async def test_what_is_to_be_placed_is_what_all_workers_say_together():
    capped = model("b", max_batch_size=4, weight_bytes=9)
    facts = facts_of({"w0": status("a", "b"), "w1": status(capped, {"name": "c", "serving": None})})
    assert facts["a"] == (7, 8, ("w0",))
    assert facts["b"] == (9, 8, ("w0", "w1"))
    assert "c" not in facts
    assert facts_of({"w1": status(capped)})["b"].max_batch == 4
