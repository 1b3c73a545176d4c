"""Whatever the server's own OpenAPI document allows, and what it forbids, is answered as the document says."""

import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import environment, serving

pytestmark = pytest.mark.clients

FOLDER = Path(__file__).parent / "schemathesis"

ADMIN = {"ENDPOINTS_ADMIN_TOKEN": "the-admin-token", "ENDPOINTS_API_TOKEN": "the-api-token"}


def run(server, folder, *options):
    """Ask everything; what was found."""
    command = [
        environment("schemathesis") / "bin" / "schemathesis", "--config-file", FOLDER / "schemathesis.toml", "run",
        f"{server.url}/openapi.json", "--header", "Authorization: Bearer the-admin-token", *options,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "SCHEMATHESIS_HOOKS": "hooks"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder, env=env)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@pytest.mark.parametrize("fast_path", ["true", "false"], ids=["fast", "asgi"])
def test_every_route_answers_as_the_document_says_and_never_breaks(tmp_path, fast_path):
    with serving(tmp_path, **ADMIN, ENDPOINTS_FAST_PATH=fast_path) as server:
        said = run(server, tmp_path, "--max-examples", "40")
        assert max(map(int, re.findall(r"Tested: (\d+)", said))) > 25
        metrics = httpx.get(f"{server.url}/metrics", timeout=60, trust_env=False).text
    # Not everything was refused.
    assert max(map(int, re.findall(r'worker_requests_total{model="floats",.*status="ok"} (\d+)', metrics))) > 5


def test_models_that_come_and_go_meanwhile_are_said_to_be_gone(tmp_path):
    with serving(tmp_path, **ADMIN, MODEL_CONTROL_MODE="explicit", STARTUP_MODELS="*") as server:
        options = ("--exclude-checks", "not_a_server_error", "--max-examples", "10")
        said = run(server, tmp_path, *options)
    assert "[500]" not in said
