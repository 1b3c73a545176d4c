"""What an operator of a real process reads: its log, its record, its settings."""

import json
import resource
import socket
from contextlib import ExitStack

import httpx
import pytest

from load_tests.simulate.record import read_record
from load_tests.simulate.rules import rule
from load_tests.simulate.run import answer
from tests.e2e.conftest import running

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "X-Request-Timeout-Ms": "30000"}


def body(rows):
    return {"inputs": [{"name": "X", "datatype": "FP32", "shape": [rows, 30], "data": [1.0] * 30 * rows}]}


@pytest.fixture(scope="module")
def told(cache_dir, tmp_path_factory):
    """The log, the record, and the last recent requests of a server that was asked through both doors."""
    records = tmp_path_factory.mktemp("records")
    settings = {"LOG_FORMAT": "json", "SLOW_REQUEST_MS": "0.001", "RECORD_DIR": records, "WORKER_NAME": "w"}
    settings |= {"MODELS_INCLUDE": "tabular", "ENDPOINTS_ADMIN_TOKEN": "s3cret"}
    with (
        running(cache_dir, **settings) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        for path in ("/v2/models/tabular/infer", "/v2/models/tabular/versions/1/infer"):
            client.post(path, json=body(3), headers=HEADERS)
        client.post("/v2/models/tabular/infer", json=body(0))
        client.post("/v2/models/made-up/infer", json=body(1))
        admin = {"Authorization": "Bearer s3cret"}
        recent = client.get("/admin/recent", headers=admin).json()
        status = client.get("/admin/status", headers=admin).json()
        assert server.stop() == 0
    lines = [json.loads(line) for line in "".join(server.log).splitlines()]
    [record] = [file for file in records.iterdir() if file.suffix == ".jsonl"]
    (records / "status.json").write_text(json.dumps(status))
    return lines, record, recent, status


def arrivals(told):
    """The lines of the record."""
    return [json.loads(line) for line in told[1].read_text().splitlines()]


def test_every_line_of_the_log_is_an_object(told):
    lines, *_ = told
    assert {"time", "level", "logger", "message"} <= set.intersection(*[set(line) for line in lines])
    assert any(line["message"].startswith("model tabular: ready") for line in lines)


def test_every_setting_and_its_source_are_logged_once_and_no_secret_is(told):
    lines, _, _, status = told
    [settings] = [line for line in lines if line["message"] == "settings"]
    assert settings.keys() >= status["settings"].keys()
    assert settings["log_format"] == "json (environment)"
    assert status["settings"]["log_format"] == {"value": "json", "source": "environment"}
    assert status["settings"]["scheduler.sizing"] == {"value": "cost", "source": "default"}
    assert status["settings"]["endpoints.admin_token"]["source"] == "environment"
    assert "s3cret" not in json.dumps(lines) + json.dumps(status)


def test_slow_and_failed_requests_are_lines_with_trace_and_stages(told):
    lines, *_ = told
    about = [line for line in lines if line["logger"] == "app.api.journal"]
    slow = next(line for line in about if line["message"] == "request slow")
    assert (slow["model"], slow["trace_id"], slow["rows"], slow["batch_rows"]) == ("tabular", TRACE, 3, 3)
    assert 0 < slow["compute_ms"] <= slow["ms"]
    assert {line["code"] for line in about if line["message"] == "request failed"} == {"empty_batch", "model_not_found"}


def test_what_arrived_is_on_record(told):
    record = arrivals(told)
    assert [(line["model"], line["rows"], line["outcome"]) for line in record] == [
        ("tabular", 3, "ok"),
        ("tabular", 3, "ok"),
        ("tabular", None, "empty_batch"),
    ]
    assert [line["timeout"] for line in record] == [30.0, 30.0, None]
    assert [line["time"] for line in record] == sorted(line["time"] for line in record)


def test_the_latest_requests_are_those_of_the_record_and_those_of_no_model(told):
    record, recent = arrivals(told), told[2]
    models = [each["model"] for each in recent["requests"]]
    assert models == [*(line["model"] for line in record), None]
    assert [each["rows"] for each in recent["dispatches"]] == [3, 3]


def test_the_record_can_be_replayed(told):
    record = read_record(told[1], told[1].with_name("status.json"))
    found = answer(record.scenario, rule("edf"), record.requests(1.0))
    assert (found.arrived, found.in_time) == (3, 3)


def test_more_connections_than_the_soft_limit_of_files_are_answered(cache_dir, request):
    """All are open at once: a server that closed or reset one of them would answer fewer."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    with running(cache_dir, MODELS_INCLUDE="tabular") as server, ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)) for _ in range(200)]
        for each in opened:
            each.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [each.recv(15) for each in opened] == [b"HTTP/1.1 200 OK"] * 200
