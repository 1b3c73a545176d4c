"""How a real process ends."""

import signal
import threading

import httpx

from tests.builders import write_identity_bundle
from tests.e2e.conftest import running

HANGS_AT_IMPORT = """
import threading

threading.Event().wait()
"""

HANGS_IN_A_REQUEST = """
import threading

def preprocess(inputs):
    if inputs["x"][0, 0] == 13:
        threading.Event().wait()
    return dict(inputs)
"""


def ask(server, value, path="/v2/models/m/infer"):
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [value] * 3}
    return httpx.post(server.url + path, json={"inputs": [tensor]}, trust_env=False, timeout=60)


def test_a_bundle_that_never_loads_does_not_keep_the_process(cache_dir, tmp_path):
    write_identity_bundle(tmp_path, "m", hooks=HANGS_AT_IMPORT)
    with running(cache_dir, tmp_path, until="Uvicorn running", SHUTDOWN_TIMEOUT_SECONDS="2") as server:
        assert httpx.get(f"{server.url}/v2/health/live", timeout=60, trust_env=False).status_code == 200
        assert server.stop() == 0


def test_a_request_that_never_ends_is_answered_and_does_not_keep_the_process(cache_dir, tmp_path):
    write_identity_bundle(tmp_path, "m", hooks=HANGS_IN_A_REQUEST)
    with running(cache_dir, tmp_path, SHUTDOWN_TIMEOUT_SECONDS="4") as server:
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(ask(server, 13)))
        waiting.start()
        while httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["hook_pool_depth"] == 0:
            pass
        assert server.stop() == 0
        waiting.join(30)
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "shutdown")]


def test_a_second_signal_ends_at_once(cache_dir, tmp_path):
    write_identity_bundle(tmp_path, "m")
    with running(cache_dir, tmp_path, DRAIN_DELAY_SECONDS="20") as server:
        server.process.send_signal(signal.SIGINT)
        server.read_until("draining")
        ready = httpx.get(f"{server.url}/v2/health/ready", timeout=60, trust_env=False)
        assert (ready.status_code, ready.json()) == (503, {"ready": False})
        assert ask(server, 1).status_code == 200  # normal service while load balancers look away
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 128 + signal.SIGTERM
