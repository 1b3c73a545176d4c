"""Two replicas on Ray Serve, on one machine in a network of its own: right answers, commands to all, nothing lost."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.clients.conftest import environment, write_echoes

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).parent / "ray" / "drive.py"

#: Ray listens on every interface and asks nobody who they are; here there is only the loopback, and nobody else. All
#: that it started ends with the namespace.
ALONE = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture(scope="module")
def seen():
    """What was seen in one run of the script."""
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us make a network namespace, outside of which Ray is not started")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name:  # short: the path of a socket is in it
        folder = Path(name)
        write_echoes(folder / "bundles")
        command = [*ALONE, str(environment("ray") / "bin" / "python"), str(SCRIPT), name]
        run = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert run.returncode == 0, run.stderr + (folder / "err").read_text()[-5000:]
        return json.loads(run.stdout.splitlines()[-1])


def test_the_deploy_says_where_it_serves(seen):
    assert "http://127.0.0.1:8000" in seen["deployed"]
    assert "2, each on the CPU" in seen["deployed"]


def test_the_official_client_gets_right_answers_from_every_replica(seen):
    found = seen["triton"]
    assert found["live"]
    assert found["ready"]
    assert found["model ready"]
    assert all(found["right"])
    assert len(found["answered"]) == 2
    assert all(found["answered"])
    assert found["statistics"] == sum(found["answered"]) == len(found["right"])


def test_a_command_reaches_every_replica_and_its_answer_is_theirs(seen):
    found = seen["commands"]
    status, told = found["set_policy"]
    assert status == 200
    assert [policy["weight"] for policy in told["workers"].values()] == [3, 3]
    assert found["weights"] == [3, 3]
    status, told = found["absent"]
    assert status == 404
    assert "unknown model 'nobody'" in told["error"]
    assert found["wrong token"][0] == 403


def test_metrics_are_those_of_all_replicas(seen):
    assert len(seen["commands"]["metrics"]) == 2


def test_a_killed_replica_loses_what_was_in_flight_and_another_knows_what_it_was_told(seen):
    found = seen["killed"]
    assert len(found["lost"]) <= 8, found["lost"]  # as many as there are clients
    assert found["lost afterwards"] == []
    assert found["weights"] == [3, 3]


def test_another_deploy_loses_nothing_and_is_what_its_settings_say(seen):
    found = seen["redeployed"]
    code, told, _ = found["told"]
    assert code == 0, found["told"]
    assert "2 to 3, each on the CPU" in told
    assert found["lost"] == []
    assert found["replicas"] == [["fifo", 1]] * 2


def test_a_load_reaches_every_replica(seen):
    assert seen["redeployed"]["load"] == 200
    assert seen["redeployed"]["models"] == [["floats", "several"]] * 2


def test_a_signal_ends_it(seen):
    assert seen["exit"] == 0
