"""What a worker is told that starts anew, and when the proxy hears of it; over workers that only take notes."""

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from app.scaleout import playback
from app.scaleout.fleet import Fleet
from app.scaleout.playback import Playback
from app.scaleout.proxy import ProxyError
from app.scaleout.workers import Worker

pytestmark = pytest.mark.anyio

PATH = "/admin/set_policy"

TOKEN = {b"authorization": b"Bearer of an operator", b"content-type": b"application/json"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@dataclass
class Process:
    """One worker: what it did, and what it says."""

    up: bool = True
    ready: bool = True
    ready_once_told: bool = False
    status: dict[str, Any] = field(default_factory=lambda: {"control_mode": "dynamic", "models": []})
    refused: set[int] = field(default_factory=set)
    slow: dict[int, asyncio.Event] = field(default_factory=dict)
    """What it does before it answers: number of a command → something to wait for."""
    told: list[int] = field(default_factory=list)
    begun: asyncio.Queue[int] = field(default_factory=asyncio.Queue)


@dataclass
class Stage:
    """Two workers and a proxy. In `events` is what the proxy was told, and how much a worker knew then."""

    events: list[tuple[str, bool, list[int]]] = field(default_factory=list)
    asked: list[httpx.Request] = field(default_factory=list)
    unheard: int = 0
    faults: int = 0

    def __post_init__(self):
        self.processes = {"w0": Process(), "w1": Process()}
        workers = [Worker("w0", "w0", "cpu", 0), Worker("w1", "w1", "cpu", 1)]
        self.fleet = Fleet(workers, "secret", httpx.MockTransport(self.answer))
        self.playback = Playback(self.fleet, self, self.fail)
        self.changed = asyncio.Event()

    def fail(self):
        self.faults += 1
        self.changed.set()

    async def admit(self, worker, *, admitted):
        if self.unheard:
            self.unheard -= 1
            raise ProxyError("it is not there")
        self.events.append((worker, admitted, list(self.processes[worker].told)))
        self.changed.set()

    async def answer(self, request):
        process = self.processes[f"w{request.url.port}"]
        if not process.up:
            raise httpx.ConnectError("refused")
        if request.url.path == "/v2/health/ready":
            return httpx.Response(200 if process.ready else 503)
        if request.url.path == "/status":
            return httpx.Response(200, json=process.status)
        self.asked.append(request)
        number = json.loads(request.content)["n"]
        process.begun.put_nowait(number)
        if number in process.slow:
            await process.slow[number].wait()
        if number in process.refused:
            return httpx.Response(404, json={"error": "unknown"})
        process.told.append(number)
        process.ready |= process.ready_once_told
        return httpx.Response(200, json={})

    async def give(self, number, path=PATH, **fields):
        """A command of an operator; what each worker answered."""
        body = json.dumps({"model": number, "n": number, **fields}).encode()
        return await self.playback.ask_all(path, "POST", body, TOKEN)

    def restart(self, **differences):
        """Worker w1 anew."""
        self.processes["w1"] = process = Process(**differences)
        self.playback.started("w1", 2)
        return process

    async def until(self, found):
        """Wait for something that the proxy or a worker was told."""
        async with asyncio.timeout(30):
            while not found():
                self.changed.clear()
                await asyncio.sleep(0)


@pytest.fixture
async def stage(monkeypatch):
    monkeypatch.setattr(playback, "_PAUSE", 0.0)
    one = Stage()
    yield one
    one.playback.close()
    await one.fleet.close()


def admitted(stage):
    return lambda: ("w1", True) in [event[:2] for event in stage.events]


async def test_a_worker_is_held_back_told_in_order_and_let_in(stage):
    for number in (1, 2, 3):
        await stage.give(number)
    stage.restart()
    await stage.until(admitted(stage))
    assert stage.events == [("w1", False, []), ("w1", True, [1, 2, 3])]


async def test_at_the_first_start_nobody_has_to_be_held_back(stage):
    """The proxy starts with all of them held."""
    stage.playback.started("w1", 1)
    await stage.until(admitted(stage))
    assert stage.events == [("w1", True, [])]


async def test_what_is_played_back_bears_the_nodes_own_token(stage):
    await stage.give(1)
    stage.restart()
    await stage.until(admitted(stage))
    assert [each.headers["authorization"] for each in stage.asked] == ["Bearer of an operator"] * 2 + ["Bearer secret"]
    assert stage.asked[-1].headers["content-type"] == "application/json"
    assert stage.asked[-1].url.path == PATH


async def test_what_is_told_while_it_starts_reaches_it_and_the_answer_says_so(stage):
    await stage.give(1)
    process = stage.restart(up=False)
    answers = await stage.give(2)
    assert answers["w0"].ok
    assert (answers["w1"].status, answers["w1"].text) == (0, "ConnectError refused; it is told when it answers")
    assert not admitted(stage)()
    process.up = True
    await stage.until(admitted(stage))
    assert stage.events[-1] == ("w1", True, [1, 2])


async def test_before_it_is_ready_it_is_told_nothing(stage):
    await stage.give(1)
    process = stage.restart(ready=False)
    for _ in range(20):
        await asyncio.sleep(0)
    assert process.told == []
    process.ready = True
    await stage.until(admitted(stage))
    assert process.told == [1]


@pytest.mark.parametrize(("state", "told"), [("LOADING", []), ("UNAVAILABLE", [1])])
async def test_one_that_waits_for_what_operators_load_is_told_before_it_is_ready(stage, state, told):
    await stage.give(1, "/v2/repository/models/m/load")
    status = {"control_mode": "explicit", "models": [{"state": state}]}
    process = stage.restart(ready=False, ready_once_told=True, status=status)
    for _ in range(100):
        await asyncio.sleep(0)
    assert process.told == told
    assert admitted(stage)() is bool(told)


async def test_what_others_still_do_when_it_is_let_in_reaches_it_after_that(stage):
    gate = stage.processes["w0"].slow[2] = asyncio.Event()
    await stage.give(1)
    process = stage.restart(up=False)
    given = asyncio.ensure_future(stage.give(2))
    await stage.until(lambda: stage.processes["w0"].begun.qsize() == 2)
    process.up = True
    await stage.until(admitted(stage))
    assert process.told == [1]
    gate.set()
    await given
    await stage.until(lambda: process.told == [1, 2])


async def test_what_comes_between_is_done_once_more_so_that_the_last_word_is_the_last(stage):
    await stage.give(1)
    process = stage.restart(slow={1: (gate := asyncio.Event())})
    assert await process.begun.get() == 1
    await stage.give(2)
    assert process.told == [2]
    gate.set()
    await stage.until(admitted(stage))
    assert process.told == [2, 1, 2]


async def test_a_successor_is_told_from_the_beginning(stage):
    await stage.give(1)
    await stage.give(2)
    first = stage.restart(slow={2: (gate := asyncio.Event())})
    await stage.until(lambda: first.begun.qsize() == 2)
    second = stage.restart()
    await stage.until(admitted(stage))
    assert (first.told, second.told) == ([1], [1, 2])
    gate.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert [event[1] for event in stage.events] == [False, False, True]  # nothing more comes of the first


async def test_what_fails_there_is_a_warning_with_its_name_and_the_rest_is_told(stage, caplog):
    await stage.give(1)
    await stage.give(2)
    stage.restart(refused={1})
    await stage.until(admitted(stage))
    assert stage.events[-1] == ("w1", True, [2])
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.levelname == "WARNING"
    assert '/admin/set_policy, which others carried out, fails on w1: {"error":"unknown"}' in record.getMessage()


async def test_what_one_worker_did_is_remembered_and_what_nobody_did_is_not(stage):
    stage.processes["w0"].refused = {2}
    stage.processes["w1"].refused = {1, 2}
    assert [each.status for each in (await stage.give(1)).values()] == [200, 404]
    assert [each.status for each in (await stage.give(2)).values()] == [404, 404]
    await stage.give(3, "/admin/compact")
    process = stage.restart()
    await stage.until(admitted(stage))
    assert process.told == [1]


async def test_nobody_is_ready_before_the_proxy_lets_a_worker_in(stage):
    """Else a balancer in front sends requests that the proxy can give to nobody."""
    assert not await stage.playback.any_ok("/v2/health/ready", 2.0)
    stage.unheard = 3
    stage.restart()
    while not admitted(stage)():
        assert not await stage.playback.any_ok("/v2/health/ready", 2.0)
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        while not await stage.playback.any_ok("/v2/health/ready", 2.0):
            await asyncio.sleep(0)
    stage.processes["w1"].ready = False
    assert not await stage.playback.any_ok("/v2/health/ready", 2.0)


async def test_questions_are_no_commands(stage):
    assert set(await stage.playback.ask_all("/status")) == {"w0", "w1"}
    assert [each.name for each in stage.playback.workers] == ["w0", "w1"]
    assert stage.asked == []


async def test_a_proxy_that_does_not_hear_is_told_again_before_the_worker_is_told_anything(stage, caplog):
    await stage.give(1)
    stage.unheard = 3
    stage.restart()
    await stage.until(admitted(stage))
    assert stage.events == [("w1", False, []), ("w1", True, [1])]
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == [
        "w1 is held back later: it is not there"
    ]


async def test_a_fault_of_ours_ends_the_node_rather_than_the_service_of_a_worker(stage, caplog):
    stage.restart(status={"models": []}, ready=False)  # no worker answers this
    await stage.until(lambda: stage.faults)
    assert "ending: w1 cannot be told" in caplog.text
