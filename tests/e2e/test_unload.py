"""Models that an operator loads and unloads while they are asked: everybody is told, and nothing crashes."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from load_tests.models import write_bundle
from load_tests.treadmill import stopwatch
from tests.builders import write_identity_bundle
from tests.e2e.conftest import running
from tests.e2e.test_scheduling import answer, held_device, output, send, wait_for

QUEUED = 100


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_bundle(root, "hold", stopwatch(), 'format_version: "1"\nbatching: {compiled_batch_sizes: [1]}\n')
    write_identity_bundle(root, "patient", sizes=(1, 2 * QUEUED))
    return root


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "asgi"])
def server(request, cache_dir, root):
    """A server whose operator loads models; `patient` waits long for company, so that what is asked stays queued."""
    settings = {
        "MODEL_CONTROL_MODE": "explicit",
        "STARTUP_MODELS": "hold",
        "ENDPOINTS_ADMIN_TOKEN": "secret",
        "ENDPOINTS_FAST_PATH": request.param,
        "SCHEDULER_MODELS": json.dumps({"patient": {"max_wait_ms": 600000}}),
    }
    with running(cache_dir, root, **settings) as process:
        yield process


def control(server, name, action):
    """Load or unload a model; the answer."""
    url, headers = f"{server.url}/v2/repository/models/{name}/{action}", {"Authorization": "Bearer secret"}
    return httpx.post(url, headers=headers, timeout=60, trust_env=False)


def state(server, name):
    index = httpx.post(f"{server.url}/v2/repository/index", timeout=60, trust_env=False).json()
    [entry] = [entry for entry in index if entry["name"] == name]
    return entry["state"], entry["reason"]


def test_each_of_a_hundred_that_are_queued_is_told_of_the_unload(server):
    assert control(server, "patient", "load").status_code == 200
    waiting = [send(server, "patient", x=[[float(row)] * 3]) for row in range(QUEUED)]
    wait_for(server, "patient", queue_depth=QUEUED)
    assert control(server, "patient", "unload").status_code == 200
    assert [answer(connection) for connection in waiting] == [
        (404, {"error": "model 'patient' was unloaded", "code": "model_not_found"})
    ] * QUEUED
    assert state(server, "patient") == ("UNAVAILABLE", "unloaded")


def test_a_model_that_is_unloaded_while_it_runs_leaves_when_the_run_has_ended(server):
    with ThreadPoolExecutor(1) as threads:
        with held_device(server):
            unload = threads.submit(control, server, "hold", "unload")
            assert httpx.get(f"{server.url}/v2/health/live", timeout=60, trust_env=False).status_code == 200
        assert unload.result().status_code == 200
    assert answer(send(server, "hold", x=[[1.0]], turns=[[1]]))[0] == 503
    assert control(server, "hold", "load").status_code == 200
    assert output(send(server, "hold", x=[[5.0]], turns=[[1]])) == [5.0]


def test_a_load_that_fails_says_why_and_can_be_tried_again(server, root):
    model = write_identity_bundle(root, "rows") / "model.onnx"
    sound = model.read_bytes()
    model.write_bytes(b"junk")
    refusal = control(server, "rows", "load")
    assert refusal.status_code == 422
    assert state(server, "rows") == ("UNAVAILABLE", refusal.json()["error"])
    assert str(model) in refusal.json()["error"]
    assert answer(send(server, "rows", x=[[1.0] * 3]))[0] == 503
    model.write_bytes(sound)
    assert control(server, "rows", "load").status_code == 200
    assert state(server, "rows") == ("READY", "")
    assert output(send(server, "rows", x=[[1.0, 2.0, 3.0]])) == [1.0, 2.0, 3.0]
    model.write_bytes(b"junk")
    assert control(server, "rows", "load").status_code == 422
    assert state(server, "rows")[0] == "READY"
    assert output(send(server, "rows", x=[[4.0] * 3])) == [4.0, 4.0, 4.0]
