"""Requests that are refused from their headers, and those that another model answers instead."""

import asyncio
import sys

import orjson
import pytest

from app.api.access import Access
from app.api.exchange import RequestHead
from app.api.inference import Inference
from app.api.limits import InFlight
from app.api.story import Story
from app.domain.config import ModelPolicy
from app.domain.errors import DeadlineInfeasible, QueueFull
from app.engine.engine import REPLIES
from app.scheduling.learning import LearnedReserve

pytestmark = pytest.mark.anyio


@pytest.fixture
def in_flight():
    return InFlight(100_000, 1 << 24, 4096)


@pytest.fixture
def handler(stage, in_flight):
    return Inference(stage.engine, Access(None, "the-admin-token"), in_flight, 4096)


def body_of(rows=1, **members):
    tensor = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": [1.0] * (3 * rows)}
    return orjson.dumps({"inputs": [tensor], **members})


def head_of(handler, name="m", timeout_ms=None, body=b""):
    headers = [] if timeout_ms is None else [(b"x-request-timeout-ms", b"%d" % timeout_ms)]
    return RequestHead(name, None, headers, handler.engine.clock(), len(body))


async def ask(handler, name="m", timeout_ms=None, **members):
    """One request through the handler; its status and what its body says."""
    body = body_of(**members)
    head = head_of(handler, name, timeout_ms, body)
    try:
        ticket = handler.admit(head)
    except Exception as error:
        reply = handler.refuse(head, error)
    else:
        reply = await handler.handle(ticket, body)
    return reply.status, orjson.loads(b"".join(reply.body))


def slow(stage, name="m", seconds=10.0):
    """Let the scheduler know that every run of the model takes so long."""
    with stage.dispatcher.locked() as scheduler:
        for size in (1, 2, 4):
            for _ in range(250):  # outliers are learned slowly
                scheduler.seed_cost(stage.registry.resolve(name).model_id, "default", size, seconds, stage.clock())


def fill_queue(stage, name="m"):
    """Fill the queue of a model past what it takes, behind a held execution; call what is returned to let go."""
    hold = stage.hold_run()
    futures = [stage.ask(name=name)]
    hold.wait_entered()
    futures += [stage.ask(name=name) for _ in range(stage.config.max_queue_depth)]

    def let_go():
        hold.open()
        for future in futures:
            future.result(30)

    return let_go


def ends(stage, name="m"):
    """How the requests of a model ended."""
    account = stage.registry.resolve(name).account
    assert account.in_flight == 0
    return {
        "accepted": account.accepted, "ok": account.ok, "failed": account.failed, "diverted": account.diverted,
        **account.drops,
    }  # fmt: skip


async def test_a_deadline_that_cannot_be_met_is_refused_from_the_headers(stage, handler, in_flight):
    stage.load()
    slow(stage)
    with pytest.raises(DeadlineInfeasible, match=r"model 'm' cannot answer in the .* that are left"):
        handler.admit(head_of(handler, timeout_ms=1000, body=b"x" * 100))
    assert (in_flight.requests, in_flight.nbytes, stage.engine.leases.total) == (0, 0, 0)
    assert ends(stage) == {"accepted": 1, "ok": 0, "failed": 0, "diverted": 0, "infeasible_admission": 1}
    handler.admit(head_of(handler, timeout_ms=20_000)).release()


async def test_a_default_timeout_counts_before_the_body_too(stage, handler):
    stage.policies["m"] = ModelPolicy(default_timeout_ms=500)
    stage.load()
    slow(stage)
    with pytest.raises(DeadlineInfeasible):
        handler.admit(head_of(handler))


async def test_a_full_queue_refuses_before_the_body_is_decoded(stage, handler):
    stage.load()
    tickets = [handler.admit(head_of(handler)) for _ in range(stage.config.max_queue_depth)]
    let_go = fill_queue(stage)
    with pytest.raises(QueueFull, match="the queue of model 'm' is full"):
        handler.admit(head_of(handler))
    let_go()
    for ticket in tickets:
        ticket.release()
    assert ends(stage)["queue_full"] == 1


async def test_a_full_queue_does_not_refuse_another_model(stage, handler):
    stage.load("m")
    stage.load("other")
    let_go = fill_queue(stage, "m")
    task = asyncio.ensure_future(ask(handler, "other"))
    await asyncio.sleep(0)
    let_go()
    assert (await task)[0] == 200


class Escape:
    """Ways in which a model cannot take a request."""

    @staticmethod
    def full(stage):
        return fill_queue(stage), {}

    @staticmethod
    def infeasible_by_header(stage):
        slow(stage)
        return lambda: None, {"timeout_ms": 5000}

    @staticmethod
    def infeasible_by_parameter(stage):
        slow(stage)
        return lambda: None, {"parameters": {"timeout": 5_000_000}}


@pytest.mark.parametrize("way", ["full", "infeasible_by_header", "infeasible_by_parameter"])
async def test_the_fallback_answers_what_the_model_cannot(stage, handler, in_flight, way):
    stage.policies["m"] = ModelPolicy(fallback="cheap")
    stage.load("m")
    stage.load("cheap", hooks="def postprocess(outputs):\n    return {'y': outputs['y'] + 41}\n")
    let_go, options = getattr(Escape, way)(stage)
    task = asyncio.ensure_future(ask(handler, **options))
    await asyncio.sleep(0)
    let_go()
    status, answer = await task
    assert status == 200
    assert answer["model_name"] == "cheap"
    assert answer["parameters"]["fallback_from"] == "m"
    assert answer["outputs"][0]["data"] == [42.0, 42.0, 42.0]
    assert ends(stage, "m") == {"accepted": 0, "ok": 0, "failed": 0, "diverted": 1}
    assert ends(stage, "cheap") == {"accepted": 1, "ok": 1, "failed": 0, "diverted": 0}
    assert (in_flight.requests, stage.engine.leases.total) == (0, 0)
    [served] = [each for each in stage.status().read().models if each.name == "m"]
    assert served.serving.diverted == 1


@pytest.mark.parametrize("options", [{"timeout_ms": 1000}, {"parameters": {"timeout": 1_000_000}}])
async def test_a_fallback_that_cannot_either_leaves_the_refusal_as_it_was(stage, handler, options):
    stage.policies["m"] = ModelPolicy(fallback="cheap")
    stage.load("m")
    stage.load("cheap")
    slow(stage, "m")
    slow(stage, "cheap")
    status, answer = await ask(handler, **options)
    assert (status, answer["code"]) == (504, "deadline_infeasible")
    assert "'m'" in answer["error"]
    assert ends(stage, "m") == {"accepted": 1, "ok": 0, "failed": 0, "diverted": 0, "infeasible_admission": 1}
    assert ends(stage, "cheap")["accepted"] == 0


@pytest.mark.parametrize("options", [{"timeout_ms": 1000}, {"parameters": {"timeout": 1_000_000}}])
async def test_a_fallback_that_is_not_there_is_none(stage, handler, options):
    stage.policies["m"] = ModelPolicy(fallback="absent")
    stage.load("m")
    slow(stage, "m")
    assert (await ask(handler, **options))[0] == 504


async def test_a_failed_execution_is_no_reason_for_the_fallback(stage, handler):
    stage.policies["m"] = ModelPolicy(fallback="cheap")
    stage.load("m")
    stage.load("cheap")
    stage.backend.fail_next(RuntimeError("broken"))
    status, answer = await ask(handler)
    assert (status, answer["code"]) == (500, "execution_failed")


async def test_the_reserve_is_learned_from_requests_with_a_deadline(stage, handler):
    stage.load(hooks="def postprocess(outputs):\n    return outputs\n")
    for _ in range(2 * REPLIES):
        assert (await ask(handler))[0] == 200
    assert stage.stats().reserve_seconds == 0.0
    for _ in range(2 * REPLIES):
        assert (await ask(handler, timeout_ms=60_000))[0] == 200
    assert 2 * REPLIES > LearnedReserve.LEAST_SAMPLES
    assert 0.0 < stage.stats().reserve_seconds < 10.0


async def test_the_idle_device_beside_queued_work_is_counted(stage):
    stage.load()
    for _ in range(3):
        stage.answer()
    stats = stage.stats()
    assert sum(stats.gap_buckets) == stats.dispatches == 3
    assert stats.gap_seconds >= 0.0


def test_gaps_do_not_count_the_time_in_which_nothing_waited(stage):
    """The device is idle for an hour between two requests: nobody waited for it."""
    stage.load()
    stage.answer()
    stage.clock.skip(3600.0)
    stage.answer()
    assert stage.stats().gap_seconds < 60.0
    assert sum(stage.stats().gap_buckets) == 2


async def test_a_refusal_from_the_headers_is_remembered_with_the_deadline_it_had(stage, handler):
    stage.policies["other"] = ModelPolicy(default_timeout_ms=300)
    for name in ("m", "other"):
        stage.load(name)
        slow(stage, name)
    await ask(handler, "m", timeout_ms=500)
    await ask(handler, "other", timeout_ms=500)
    await ask(handler, "absent", timeout_ms=500)
    assert [(each["model"], each["timeout"]) for each in handler.journal.latest()["requests"]] == [
        ("m", 0.5), ("other", 0.3), (None, 0.5)
    ]  # fmt: skip


async def test_refusals_that_fallbacks_spare_leave_no_exception_behind(stage, handler):
    """A compiled coroutine that waited while it handled one left it to whatever ran next, each with those before."""
    stage.policies["m"] = ModelPolicy(fallback="cheap")
    stage.load("m")
    stage.load("cheap")
    slow(stage)
    body, replies, left = body_of(parameters={"timeout": 5_000_000}), [], []

    def begin():
        ticket = handler.admit(head_of(handler, body=body))
        Story(handler.handle(ticket, body), lambda story, reply, error: replies.append(reply and reply.status)).begin()

    loop = asyncio.get_running_loop()
    for _ in range(5):
        loop.call_soon(begin)
    while len(replies) < 5:
        await asyncio.sleep(0)
    assert set(replies) == {200}
    loop.call_soon(lambda: left.append(sys.exc_info()[1]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert left == [None]
