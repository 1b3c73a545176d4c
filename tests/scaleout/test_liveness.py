"""Which workers are ended because they do not work."""

import asyncio
import signal

import httpx
import pytest

from app.scaleout.fleet import Fleet
from app.scaleout.liveness import Pulse, watch
from app.scaleout.workers import Worker


def lost(looks, start=1):
    pulse = Pulse()
    return [pulse.lost(start, live=live) for live in looks]


def test_what_was_live_and_is_not_at_three_looks_is_lost():
    assert lost([True, False, False, False, False]) == [False, False, False, True, True]
    assert lost([True, False, False, True, False, False]) == [False] * 6


def test_what_was_never_live_is_still_starting():
    assert not any(lost([False] * 10))


def test_a_successor_has_a_pulse_of_its_own():
    pulse = Pulse()
    looks = [(1, True), (1, False), (1, False), (2, False), (2, False), (2, True), (2, False)]
    assert not any(pulse.lost(start, live=live) for start, live in looks)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_worker_that_is_not_live_is_ended_and_no_other(monkeypatch):
    monkeypatch.setattr("app.scaleout.liveness.EVERY_SECONDS", 0.0)
    looks, ended = {1: 0, 2: 0}, asyncio.Event()

    class Process:
        starts = 1

        def __init__(self, name):
            self.name = name

        def signal(self, number):
            killed.append((self.name, number))
            ended.set()

    def answer(request):
        port = request.url.port
        looks[port] += 1
        return httpx.Response(200 if port == 1 or looks[port] == 1 else 503)

    killed: list[tuple[str, signal.Signals]] = []
    fleet = Fleet([Worker("w0", "a", "0", 1), Worker("w1", "b", "1", 2)], "secret", httpx.MockTransport(answer))
    watching = asyncio.ensure_future(watch(fleet, {name: Process(name) for name in fleet.names}))
    await asyncio.wait_for(ended.wait(), 30)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await fleet.close()
    assert killed[0] == ("w1", signal.SIGKILL)
    assert {name for name, _ in killed} == {"w1"}
    assert looks[2] >= 4
