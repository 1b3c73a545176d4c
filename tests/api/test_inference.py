"""The real handler over a staged engine: whatever happens to requests, every one is accounted for."""

import asyncio
import logging
import threading
from collections import Counter

import orjson
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from app.api.access import Access
from app.api.exchange import RequestHead
from app.api.inference import Inference
from app.api.limits import InFlight
from app.domain.errors import ExecutionFailed
from tests.api.doors.harness import chunked, request, serve

pytestmark = pytest.mark.anyio

MAX_BODY = 4096

#: What the first value of a request makes of it.
OK, REFUSED_BY_HOOK, BROKEN_HOOK, BROKEN_DEVICE = 1, 2, 3, 4

HOOKS = f"""
def preprocess(inputs):
    if inputs["x"][0, 0] == {REFUSED_BY_HOOK}:
        raise ValueError("not this one")
    if inputs["x"][0, 0] == {BROKEN_HOOK}:
        raise RuntimeError("secret of the hook")
    return inputs
"""

#: Kind of request → (value, status of its answer, outcome in the account); None where there is none.
KINDS = {
    "unknown model": (OK, 404, None),
    "unknown version": (OK, 404, None),
    "too large": (OK, 413, None),
    "bad header": (OK, 400, None),
    "bad body": (OK, 400, "failed"),
    "too many chunks": (OK, 413, "failed"),
    "refused by hook": (REFUSED_BY_HOOK, 400, "failed"),
    "broken hook": (BROKEN_HOOK, 500, "failed"),
    "broken device": (BROKEN_DEVICE, 500, "failed"),
    "late": (OK, 504, "dropped"),
    "gone": (OK, None, "dropped"),
    "ok": (OK, 200, "ok"),
}

#: Those that are answered though the device is busy.
WITHOUT_DEVICE = KINDS.keys() - {"broken device", "gone", "ok"}


class Device:
    """Holds an execution until it is let go; breaks on some values."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, variant, size, inputs):
        self.entered.set()
        assert self.opened.wait(30)
        if BROKEN_DEVICE in inputs["x"]:
            raise ExecutionFailed("secret of the device")


@pytest.fixture
def in_flight():
    return InFlight(100, 1 << 20, MAX_BODY)


@pytest.fixture
def handler(stage, in_flight):
    return Inference(stage.engine, Access(None, "the-admin-token"), in_flight, MAX_BODY)


def body_of(value, rows=1):
    tensor = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": [value] * (3 * rows)}
    return orjson.dumps({"inputs": [tensor]})


async def ask(handler, kind, rows):
    """One request of a kind, as a door makes it; the status of its answer."""
    body = b"{" if kind == "bad body" else body_of(KINDS[kind][0], rows)
    head = RequestHead(
        "absent" if kind == "unknown model" else "m",
        "9" if kind == "unknown version" else None,
        {"late": [(b"x-request-timeout-ms", b"1")], "bad header": [(b"x-request-timeout-ms", b"soon")]}.get(kind, []),
        handler.engine.clock(),
        MAX_BODY + 1 if kind == "too large" else None if kind == "too many chunks" else len(body),
    )
    try:
        ticket = handler.admit(head)
    except Exception as error:
        return handler.refuse(head, error).status
    try:
        if kind == "too many chunks":
            for _ in range(3):
                ticket.grow(MAX_BODY // 2)
        return (await handler.handle(ticket, body)).status
    except Exception as error:
        return handler.refuse(head, error).status
    finally:
        ticket.release()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def serve_mix(stage, handler, running, others):
    """The statuses of the answers, None for those who went; `running` is on the device when the others come."""
    device = stage.backend.on_run = Device()
    first = asyncio.create_task(ask(handler, *running))
    assert await asyncio.to_thread(device.entered.wait, 30)
    tasks = [asyncio.create_task(ask(handler, *each)) for each in others]
    await asyncio.gather(*[task for task, each in zip(tasks, others, strict=True) if each[0] in WITHOUT_DEVICE])
    pieces = sum(rows for kind, rows in [running, *others] if kind not in WITHOUT_DEVICE)
    await until(lambda: stage.dispatcher.stats().queue_depth == pieces - 1)
    for task, each in zip([first, *tasks], [running, *others], strict=True):
        if each[0] == "gone":
            task.cancel()
    device.opened.set()
    return [
        None if isinstance(status, asyncio.CancelledError) else status
        for status in await asyncio.gather(first, *tasks, return_exceptions=True)
    ]


RUNNING = st.tuples(st.sampled_from(["gone", "ok", "broken device"]), st.integers(1, 3))
OTHERS = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 3)), max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(running=RUNNING, others=OTHERS)
async def test_every_request_is_accounted_for_however_it_ends(stage, handler, in_flight, running, others):
    if "m" not in stage.registry.entries:
        stage.load(hooks=HOOKS, sizes=(1,))  # nothing is merged: one that breaks the device fails alone
    account = stage.registry.resolve("m").account
    before = Counter(accepted=account.accepted, ok=account.ok, failed=account.failed, dropped=account.dropped)
    for kind, _ in [running, *others]:
        event(kind)
    statuses = await serve_mix(stage, handler, running, others)
    assert statuses == [KINDS[kind][1] for kind, _ in [running, *others]]
    stage.settle()
    assert (in_flight.requests, in_flight.nbytes, stage.engine.leases.total, account.in_flight) == (0, 0, 0, 0)
    assert stage.dispatcher.stats().queue_depth == 0
    ends = Counter(outcome for kind, _ in [running, *others] if (outcome := KINDS[kind][2]) is not None)
    after = Counter(accepted=account.accepted, ok=account.ok, failed=account.failed, dropped=account.dropped)
    assert after - before == ends + Counter(accepted=ends.total())


@pytest.mark.parametrize("failure", [ExecutionFailed("secret of the device"), RuntimeError("secret of the device")])
async def test_the_backends_words_stay_in_the_log(stage, handler, caplog, failure):
    stage.load()
    stage.backend.fail_next(failure)
    body = body_of(OK)
    reply = await handler.handle(handler.admit(RequestHead("m", None, [], stage.clock(), len(body))), body)
    answer = orjson.loads(b"".join(reply.body))
    assert (reply.status, answer["code"]) == (500, "execution_failed")
    assert "secret" not in answer["error"]
    text = logging.Formatter()
    [record] = [each for each in caplog.records if "secret of the device" in text.format(each)]
    assert record.levelno == logging.ERROR


async def test_an_answer_that_finds_no_memory_is_no_bug(stage, handler, in_flight, caplog, monkeypatch):
    stage.load()

    def write(*_):
        raise MemoryError

    monkeypatch.setattr("app.api.codec.reply.write_data", write)
    head = RequestHead("m", None, (), handler.engine.clock(), 0)
    reply = await handler.handle(handler.admit(head), body_of(1))
    assert (reply.status, orjson.loads(b"".join(reply.body))["code"]) == (503, "out_of_memory")
    assert [record for record in caplog.records if record.exc_info] == []
    assert in_flight.requests == 0


REFUSALS = {
    "unknown model": request(body_of(OK), "absent"),
    "unknown version": request(body_of(OK), version="9"),
    "too large": request(b" " * (MAX_BODY + 1)),
    "too many chunks": chunked(b" " * MAX_BODY, b" "),
    "bad header": request(body_of(OK), "m", "X-Request-Timeout-Ms: soon"),
    "bad body": request(b"{"),
    "broken hook": request(body_of(BROKEN_HOOK)),
    "broken device": request(body_of(BROKEN_DEVICE)),
}


@pytest.mark.parametrize("door", ["fast", "asgi", "plain"])
@pytest.mark.parametrize("kind", REFUSALS)
async def test_every_refusal_has_a_request_id_at_both_doors(stage, handler, door, kind):
    stage.load(hooks=HOOKS)
    stage.backend.on_run = device = Device()
    device.opened.set()
    asked = REFUSALS[kind]
    named = asked.replace(b"Host: test\r\n", b"Host: test\r\nX-Request-Id: mine\r\n")
    async with serve(door, handler) as server:
        replies = [await (await server.connect()).ask(each) for each in (named, asked, asked)]
    assert {reply.status for reply in replies} == {KINDS[kind][1]}
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert ids[0] == "mine"
    assert len(set(ids)) == 3
    if KINDS[kind][1] == 500:
        assert all(f"(request {each})" in reply.body.decode() for each, reply in zip(ids, replies, strict=True))


@pytest.mark.parametrize("door", ["fast", "asgi"])
@pytest.mark.parametrize("kind", ["unknown model", "unknown version", "bad header", "bad body"])
async def test_the_request_id_of_a_refusal_is_that_in_the_log_and_no_two_have_the_same(stage, handler, door, kind):
    stage.load()
    async with serve(door, handler) as server:
        client = await server.connect()
        ids = [(await client.ask(REFUSALS[kind])).headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert [each["request_id"] for each in handler.journal.latest()["requests"]] == ids


@pytest.mark.parametrize("given", [None, "Bearer wrong"])
@pytest.mark.parametrize("door", ["fast", "asgi"])
async def test_a_refused_caller_has_a_request_id(stage, in_flight, door, given):
    handler = Inference(stage.engine, Access("the-api-token", "the-admin-token"), in_flight, MAX_BODY)
    headers = () if given is None else (f"Authorization: {given}",)
    async with serve(door, handler) as server:
        reply = await (await server.connect()).ask(request(b"", "m", "X-Request-Id: mine", *headers))
    assert (reply.status, reply.headers["x-request-id"]) == (401 if given is None else 403, "mine")
    assert in_flight.requests == 0
