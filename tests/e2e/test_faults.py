"""Crowds of clients against a real process: those who go away in any state leave nothing behind."""

import asyncio
import re
import socket
import struct
from contextlib import ExitStack, contextmanager, suppress
from random import Random

import httpx
import orjson
import pytest

from tests.e2e.conftest import running

BODY = orjson.dumps({"inputs": [{"name": "X", "shape": [1, 30], "datatype": "FP32", "data": [0.5] * 30}]})
REQUEST = (
    b"POST /v2/models/tabular/infer HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "asgi"])
def waiting(request, cache_dir):
    """A server whose model waits long for company, so that what is asked stays queued until 32 came together."""
    models = '{"tabular": {"max_wait_ms": 600000}}'
    with running(cache_dir, ENDPOINTS_FAST_PATH=request.param, SCHEDULER_MODELS=models) as server:
        yield server


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "asgi"])
def prompt(request, cache_dir):
    """A server as it is configured by default."""
    with running(cache_dir, ENDPOINTS_FAST_PATH=request.param) as server:
        yield server


class Gauges:
    """What a server says of the model `tabular`."""

    def __init__(self, client):
        self.client = client

    def read(self, name, **labels):
        wanted = [f'{key}="{value}"' for key, value in {"model": "tabular", **labels}.items()]
        found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        [value] = [value for text, value in found if all(each in text for each in wanted)]
        return float(value)

    def until(self, value, name, **labels):
        """Ask until the server says so; each answer takes it time, and so the count bounds the wait."""
        for _ in range(5000):
            if self.read(name, **labels) == value:
                return
        raise AssertionError(f"{name} is {self.read(name, **labels)} and not {value}")

    def ended(self):
        return {status: self.read("worker_requests_total", status=status) for status in ("ok", "failed", "dropped")}


@contextmanager
def gauges_of(server):
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        gauges = Gauges(client)
        gauges.until(0, "worker_inflight_requests")
        yield gauges


def reset(connection):
    """Let the end of the connection be a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("how", ["close", "reset"])
def test_queued_requests_of_clients_that_go_are_never_run_and_counted_as_cancelled(waiting, how):
    with gauges_of(waiting) as gauges, ExitStack() as stack:
        dispatches = gauges.read("worker_dispatch_total")
        cancelled = gauges.read("worker_drops_total", reason="cancelled")
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", waiting.port))) for _ in range(31)]
        for client in clients:
            client.sendall(REQUEST)
        gauges.until(31, "worker_queue_depth")
        for client in clients:
            if how == "reset":
                reset(client)
            client.close()
        gauges.until(0, "worker_queue_depth")
        gauges.until(0, "worker_inflight_requests")
        assert gauges.read("worker_drops_total", reason="cancelled") == cancelled + 31
        assert gauges.read("worker_dispatch_total") == dispatches


async def visit(port, chance):
    """One client, which leaves at some point of its request, or stays for the answer; what became of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    part = chance.choice([0, 30, len(REQUEST) - 10, len(REQUEST), len(REQUEST), len(REQUEST)])
    writer.write(REQUEST[:part])
    try:
        await writer.drain()
        for _ in range(chance.choice([0, 0, 1, 5, 50])):
            await asyncio.sleep(0)
        if part < len(REQUEST) or chance.random() < 0.5:
            return "left"
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1])
    finally:
        if chance.random() < 0.5:
            reset(writer.get_extra_info("socket"))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def visit_all(port, number, together):
    chance = Random(1)
    free = asyncio.Semaphore(together)

    async def one():
        async with free:
            return await visit(port, chance)

    async with asyncio.timeout(120):
        return await asyncio.gather(*[one() for _ in range(number)])


def test_a_thousand_clients_that_leave_anywhere_leave_nothing_behind(prompt):
    with gauges_of(prompt) as gauges:
        before = gauges.ended()
        ends = asyncio.run(visit_all(prompt.port, 1000, 100))
        assert set(ends) == {200, "left"}
        gauges.until(0, "worker_inflight_requests")
        assert gauges.read("worker_queue_depth") == 0
        counted = {status: value - before[status] for status, value in gauges.ended().items()}
        assert counted["ok"] >= ends.count(200) > 100
        assert counted["failed"] == 0
        assert counted["dropped"] > 0
        assert ends.count("left") > 300
        assert gauges.client.post("/v2/models/tabular/infer", content=BODY).status_code == 200
        assert gauges.client.get("/v2/health/live").status_code == 200
