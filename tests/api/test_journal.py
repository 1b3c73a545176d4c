"""What is remembered of requests, and which of them are worth a line."""

import json
import logging
from math import inf

import pytest

from app.api.journal import EndedRequest, Journal, trace_id
from app.domain.errors import ExecutionFailed
from app.runtime.recent import REMEMBERED, DispatchLog

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def lines(caplog):
    """The facts of the lines about requests, by what they say."""
    caplog.set_level(logging.INFO)

    def told():
        records = [record for record in caplog.records if record.name == "app.api.journal"]
        return [(record.getMessage(), record.facts) for record in records]

    return told


@pytest.fixture
def journal():
    return Journal(lambda: 100.0, DispatchLog(), slow_seconds=0.5)


def ended(at=100.0, model="m", code=None, seconds=0.1, **fields):
    return EndedRequest(at, model, b"id", code, seconds, inf, **fields)


async def test_an_answer_in_time_is_no_line(api, stage, lines):
    stage.load()
    assert (await api.infer([1])).status_code == 200
    assert lines() == []


async def test_a_failed_request_is_one_line_with_its_facts(api, stage, lines):
    stage.load()
    stage.backend.fail_next(ExecutionFailed("boom"))
    body = {"inputs": [{"name": "x", "shape": [3, 3], "datatype": "FP32", "data": [0] * 9}]}
    async with api.client({**PARENT, "x-request-id": "mine"}) as client:
        answer = await client.post("/v2/models/m/infer", json=body)
    assert answer.status_code == 500
    [(said, facts)] = lines()
    assert said == "request failed"
    assert (facts["model"], facts["code"], facts["rows"]) == ("m", "execution_failed", 3)
    assert (facts["request_id"], facts["trace_id"]) == ("mine", TRACE)
    assert 0 < facts["decode_ms"] <= facts["ms"]
    assert "suppressed" not in facts


async def test_a_dropped_request_is_one_line(api, stage, lines):
    stage.load()
    assert (await api.infer([1], parameters={"timeout": 1})).status_code == 504
    [(said, facts)] = lines()
    assert said == "request dropped"
    assert facts["code"] in {"deadline_exceeded", "deadline_infeasible"}


async def test_a_slow_answer_is_one_line_with_its_batch(make_api, stage, lines):
    api = make_api(slow_seconds=1e-9)
    stage.load()
    assert (await api.infer([1, 2, 3])).status_code == 200
    [(said, facts)] = lines()
    assert (said, facts["rows"], facts["batch_rows"], facts["batch_size"]) == ("request slow", 3, 3, 4)
    assert {"decode_ms", "queue_ms", "compute_ms", "encode_ms", "bytes"} <= facts.keys()
    assert "code" not in facts


async def test_a_request_that_is_refused_from_its_headers_is_one_line_and_a_made_up_model_has_no_name(
    api, stage, lines
):
    stage.load()
    assert (await api.infer([1], name="made-up")).status_code == 404
    answer = await api.post("/v2/models/m/infer", content=b"{}", headers={"X-Request-Timeout-Ms": "soon"})
    assert answer.status_code == 400
    [(unknown, facts), (known, others)] = lines()
    assert (unknown, known) == ("request failed", "request failed")
    assert (facts.get("model"), facts["code"]) == (None, "model_not_found")
    assert (others.get("model"), others["code"]) == ("m", "invalid_request")


async def test_a_body_that_ends_too_early_is_one_line(api, stage, lines):
    stage.load()

    async def short():
        yield b"{"

    answer = await api.post("/v2/models/m/infer", content=short(), headers={"Content-Length": "10"})
    assert answer.status_code == 400
    [(_, facts)] = lines()
    assert facts["model"] == "m"


async def test_neither_tensors_nor_tokens_stand_in_a_line_or_in_what_is_remembered(make_api, stage, caplog):
    api = make_api(slow_seconds=1e-9)
    stage.load()
    secret = 1.2345678
    await api.infer([secret])
    await api.infer([secret], parameters={"sequence_id": secret})
    stage.backend.fail_next(ExecutionFailed("boom"))
    await api.infer([secret])
    recent = (await api.get("/admin/recent")).text
    told = " ".join(str(vars(record)) for record in caplog.records)
    assert "2345678" not in told + recent
    assert "the-admin-token" not in told + recent


def test_of_one_model_and_code_a_line_a_second_is_told_with_the_number_of_those_that_were_not(journal, lines):
    for at in (100.0, 100.2, 100.4, 100.6, 101.1):
        journal.ended(ended(at, code="queue_full"), ())
    journal.ended(ended(101.2, code="internal"), ())
    journal.ended(ended(101.2, "other", code="queue_full"), ())
    journal.ended(ended(102.2, code="queue_full"), ())
    assert [(facts["model"], facts["code"], facts.get("suppressed")) for _, facts in lines()] == [
        ("m", "queue_full", None),
        ("m", "queue_full", 3),
        ("m", "internal", None),
        ("other", "queue_full", None),
        ("m", "queue_full", None),
    ]


@pytest.mark.parametrize(("seconds", "told"), [(0.49, 0), (0.5, 1), (3.0, 1)])
def test_slow_is_what_takes_as_long_as_the_setting_or_longer(journal, lines, seconds, told):
    journal.ended(ended(seconds=seconds), ())
    assert len(lines()) == told


def test_the_ring_holds_so_many_and_forgets_the_oldest(journal):
    for number in range(REMEMBERED + 3):
        journal.ended(ended(float(number)), ())
    latest = journal.latest()["requests"]
    assert len(latest) == REMEMBERED
    assert latest[-1]["at"] - latest[0]["at"] == REMEMBERED - 1
    assert [each["at"] for each in journal.latest(2)["requests"]] == [each["at"] for each in latest[-2:]]


async def test_an_answer_is_remembered_with_all_that_is_known_of_it(api, stage):
    stage.load()
    async with api.client({"x-request-id": "r" * 300, "x-request-timeout-ms": "60000"}) as client:
        body = {"inputs": [{"name": "x", "shape": [3, 3], "datatype": "FP32", "data": [0] * 9}]}
        answer = await client.post("/v2/models/m/infer", json=body)
        assert answer.status_code == 200
    [told] = (await api.get("/admin/recent")).json()["requests"]
    assert {**told, "at": 0, "seconds": 0, "stages": 0} == {
        "at": 0, "model": "m", "request_id": "r" * 256, "code": None, "seconds": 0, "timeout": 60.0, "rows": 3,
        "batch_rows": 3, "batch_size": 4, "nbytes": len(answer.request.content), "stages": 0, "asked": None,
    }  # fmt: skip
    spent = [float(each.partition("dur=")[2]) / 1e3 for each in answer.headers["server-timing"].split(", ")]
    assert list(told["stages"].values()) == pytest.approx(spent, abs=1e-6)
    assert told["seconds"] >= sum(told["stages"].values()) > 0


def test_what_is_left_is_written_out(journal, tmp_path):
    journal.ended(ended(rows=3, stages=(0.1, 0.0, 0.2, 0.0, 0.3, 0.0, 0.1)), ())
    journal.write_out(tmp_path / "deep" / "recent.json")
    written = json.loads((tmp_path / "deep" / "recent.json").read_text())
    assert written == json.loads(json.dumps(journal.latest()))
    assert written["requests"][0]["stages"]["queue"] == 0.2


def test_what_cannot_be_written_out_is_said(journal, tmp_path, caplog):
    (tmp_path / "file").touch()
    journal.write_out(tmp_path / "file" / "recent.json")
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize(
    ("value", "trace"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"01-{TRACE}-b7ad6b7169203331-01-more", TRACE),
        (f"00-{TRACE}", None),
        (f"00-{TRACE[:-1]}-b7ad6b7169203331-01", None),
        (f"00-{TRACE[:-1]}\n-b7ad6b7169203331-01", None),
        ("", None),
        ("\xff-\xff-\xff-\xff", None),
    ],
)
def test_a_trace_is_read_where_it_is_one(value, trace):
    assert trace_id([(b"host", b"x"), (b"traceparent", value.encode("latin-1"))]) == trace
