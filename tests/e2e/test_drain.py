"""A real process under load that is told to end."""

import os
import signal
import threading
import time
from pathlib import Path

import httpx

from tests.builders import write_identity_bundle
from tests.e2e.conftest import running

BODY = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1.0] * 6}]}

ISOLATED = """
def preprocess(inputs):
    return dict(inputs)
"""


def ask_until_nobody_is_there(url, answers):
    """Keep asking over one connection; when, status and `Connection` of each answer, status 0 when it ended instead."""
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        status = -1
        while status:
            begun, connection = time.monotonic(), None
            try:
                answer = client.post("/v2/models/m/infer", json=BODY)
                status, connection = answer.status_code, answer.headers.get("connection")
            except httpx.TransportError:
                status = 0
            answers.append((begun, status, connection))


def processes_that_know(text):
    """The ids of processes in whose environment the text stands."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found - {os.getpid()}


def test_under_load_nothing_fails_while_balancers_look_away_and_what_comes_later_is_told_to_go_elsewhere(
    cache_dir, tmp_path
):
    write_identity_bundle(tmp_path, "m")
    told: list[list[tuple[float, int, str | None]]] = [[] for _ in range(8)]
    with running(cache_dir, tmp_path, DRAIN_DELAY_SECONDS="3") as server:
        clients = [threading.Thread(target=ask_until_nobody_is_there, args=(server.url, answers)) for answers in told]
        for client in clients:
            client.start()
        while sum(map(len, told)) < 50:
            pass
        server.process.send_signal(signal.SIGTERM)
        server.read_until("draining")
        draining = time.monotonic()
        assert httpx.get(f"{server.url}/v2/health/ready", timeout=60, trust_env=False).status_code == 503
        assert httpx.get(f"{server.url}/v2/health/live", timeout=60, trust_env=False).status_code == 200
        assert server.process.wait(30) == 0
    for client in clients:
        client.join(30)
    for answers in told:
        statuses = [status for _, status, _ in answers]
        assert statuses == sorted(statuses, key=[200, 503, 0].index), "nobody is served after a refusal"
        assert {connection for _, status, connection in answers if status == 503} <= {"close"}
        # What was on its way when it began to drain had three seconds to be taken: who was refused came later.
        assert all(begun > draining for begun, status, _ in answers if status != 200)
    assert any(begun > draining for answers in told for begun, status, _ in answers if status == 200)


def test_no_process_and_no_file_outlives_it(cache_dir, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    models = tmp_path / "models"
    write_identity_bundle(models, "m", hooks=ISOLATED, manifest="hooks: {isolation: process}\n")
    with running(cache_dir, models) as server:
        assert httpx.post(f"{server.url}/v2/models/m/infer", json=BODY, timeout=60, trust_env=False).status_code == 200
        assert len(processes_that_know(str(scratch))) > 1
        assert server.stop() == 0
    assert processes_that_know(str(scratch)) == set()
    assert list(scratch.rglob("*")) == []
