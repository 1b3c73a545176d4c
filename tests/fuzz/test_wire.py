"""Requests that are almost right, thousands of them: each gets its answer, none of them 500, and nothing is left over.

`FUZZ_REQUESTS` says how many (`make soak` 100 000), `FUZZ_SEED` from where on. A failure names the seed of its request:
`FUZZ_SEED=… FUZZ_REQUESTS=1` is that request alone.
"""

import asyncio
import json
import os
import random
from collections import Counter

import pytest
from anyio import fail_after

from app.api.access import Access
from app.api.exchange import RequestHead
from app.api.inference import Inference
from app.api.journal import Journal
from app.api.limits import InFlight
from app.domain.errors import ServingError
from app.runtime import shared_memory
from app.runtime.shared_memory import Regions
from tests.e2e.test_malformed import four
from tests.fuzz.mutations import mutated

pytestmark = pytest.mark.anyio

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "3000"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))

MAX_BODY = 1 << 18


@pytest.fixture
def handler(stage, tmp_path, monkeypatch):
    """The common code of both doors, over a device that answers at once; region `r` has 64 bytes, `shrunk` had."""
    bundle = stage.root / "four"
    bundle.mkdir()
    (bundle / "model.onnx").write_bytes(four().SerializeToString())
    stage.control.load_model("four", bundle).result(30)
    monkeypatch.setattr(shared_memory, "DIRECTORY", str(tmp_path))
    regions = Regions()
    for name in ("r", "shrunk"):
        (tmp_path / name).write_bytes(bytes(64))
        regions.register(name, name, 0, 64)
    os.truncate(tmp_path / "shrunk", 8)
    in_flight, journal = InFlight(10, 1 << 20, MAX_BODY), Journal(stage.clock, stage.dispatcher.log)
    return Inference(stage.engine, Access(None, "token"), in_flight, MAX_BODY, journal=journal, regions=regions)


async def answered(handler, wire, clock):
    """The reply, as a door asks for it."""
    length = len(wire.body) if wire.announced else None
    head = RequestHead("four", None, wire.headers, clock(), length)
    try:
        ticket = handler.admit(head)
        if not wire.announced:
            grow(ticket, wire.body)
    except ServingError as error:
        return handler.refuse(head, error)
    return await handler.handle(ticket, wire.body)


def grow(ticket, body):
    try:
        for at in range(0, len(body), 4096):
            ticket.grow(len(body[at : at + 4096]))
    except ServingError:
        ticket.release()
        raise


def check(reply):
    """That an answer is one, and says what is wrong."""
    headers = dict(reply.headers)
    body = b"".join(reply.body)
    assert reply.status in (200, 400, 413, 415, 504), body
    if reply.status != 200:
        assert {name: type(value) for name, value in json.loads(body).items()} == {"error": str, "code": str}
    elif b"content-encoding" not in headers:
        json.loads(body[: int(headers.get(b"inference-header-content-length", len(body)))])


async def test_almost_right_requests_are_answered_and_leave_nothing(handler, stage):
    answers: Counter[int] = Counter()
    for seed in range(SEED, SEED + REQUESTS):
        wire = mutated(random.Random(seed))
        try:
            with fail_after(60):
                reply = await answered(handler, wire, stage.clock)
            check(reply)
        except Exception as error:
            error.add_note(f"FUZZ_SEED={seed}: {wire.headers} {wire.body[:2000]!r}")
            raise
        answers[reply.status] += 1
        if seed % 256 == 0:
            await asyncio.sleep(0)
    print(f"{REQUESTS} requests: {dict(sorted(answers.items()))}")  # noqa: T201
    assert handler.in_flight.requests == handler.in_flight.nbytes == stage.engine.leases.total == 0
    assert stage.stats("four").queue_depth == 0
    account = stage.registry.resolve("four").account
    assert account.in_flight == 0
    assert account.accepted == account.ok + account.failed + account.dropped
    if REQUESTS >= 1000:
        assert {200, 400, 413, 415, 504} <= answers.keys()
        assert answers[200] > REQUESTS // 20
