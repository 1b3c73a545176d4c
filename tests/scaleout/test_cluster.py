"""Two workers behind a real HAProxy: clients notice nothing of what happens to one of them."""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import BUNDLES, running
from tests.processes import wait_ended
from tests.scaleout.conftest import clustered, load

pytestmark = pytest.mark.clients

INFER = "/v2/models/tabular/infer"

ROWS = np.load(BUNDLES / "tabular" / "sample.npz")["X"]

PACKING = {"CLUSTER_MODE": "lpt_packing", "SCHEDULER_DISCIPLINE": "fifo", "CLUSTER_POLL_SECONDS": "0.2"}


def body(rows=1):
    data = np.resize(ROWS, (rows, 30))
    tensor = {"name": "X", "datatype": "FP32", "shape": [rows, 30], "data": data.ravel().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


#: As large as a body may be that is sent again.
LARGE = next(each for rows in range(400, 1, -1) if len(each := body(rows)) < 64 * 1024)


@pytest.fixture(scope="module")
def cluster(cache_dir):
    with clustered(cache_dir) as node:
        yield node


@pytest.fixture(scope="module")
def packing(cache_dir):
    with clustered(cache_dir, **PACKING) as node:
        yield node


def probabilities(url, rows):
    client = triton.InferenceServerClient(url.removeprefix("http://"))
    tensor = triton.InferInput("X", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return client.infer("tabular", [tensor]).as_numpy("probabilities")


def restarted(cluster, name, pid):
    """Whether a worker runs anew and has answered something."""
    worker = next(each for each in cluster.workers() if each["name"] == name)
    return worker["pid"] not in (None, pid) and cluster.answered().get(name, 0) > 0


@pytest.mark.parametrize("mode", ["round_robin", "least_outstanding"])
def test_the_official_client_gets_right_answers_from_every_worker(cache_dir, mode):
    with clustered(cache_dir, CLUSTER_MODE=mode) as node:
        client = triton.InferenceServerClient(node.url.removeprefix("http://"))
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("tabular")
        assert client.get_model_metadata("tabular")["inputs"][0]["name"] == "X"
        expected = probabilities(f"http://{node.workers()[0]['address']}", ROWS[:3])
        before = node.answered()
        for _ in range(20):
            np.testing.assert_allclose(probabilities(node.url, ROWS[:3]), expected, rtol=1e-5)
        after = node.answered()
        assert sum(after.values()) == sum(before.values()) + 20
        assert all(after[name] > before[name] for name in ("w0", "w1"))
        [stats] = client.get_inference_statistics("tabular")["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == sum(after.values())


def test_where_models_are_placed_each_is_asked_where_it_lives(packing):
    expected = probabilities(f"http://{packing.workers()[0]['address']}", ROWS[:3])
    [home] = packing.homes()["tabular"]
    before = packing.answered()
    for _ in range(20):
        np.testing.assert_allclose(probabilities(packing.url, ROWS[:3]), expected, rtol=1e-5)
    gained = {name: count - before[name] for name, count in packing.answered().items()}
    assert gained == {name: 20 if name == home else 0 for name in ("w0", "w1")}


@pytest.mark.parametrize("content", [body(), LARGE], ids=["small", "64kB"])
@pytest.mark.parametrize("which", ["cluster", "packing"])
def test_a_worker_that_is_killed_costs_nobody_an_answer_and_comes_back(request, which, content):
    node = request.getfixturevalue(which)
    victim = node.workers()[0] if which == "cluster" else next(
        each for each in node.workers() if each["name"] == node.homes()["tabular"][0]
    )  # fmt: skip
    with load(node.url, INFER, content) as clients:
        clients.wait_for_more()
        os.kill(victim["pid"], signal.SIGKILL)
        clients.wait_for_more()
        node.wait(lambda: restarted(node, victim["name"], victim["pid"]), "the worker is back and used")
        clients.wait_for_more()
    assert clients.failures == []


def test_a_worker_that_is_drained_costs_nobody_an_answer(cluster):
    victim = cluster.workers()[0]
    with load(cluster.url, INFER, LARGE) as clients:
        clients.wait_for_more()
        os.kill(victim["pid"], signal.SIGTERM)
        cluster.wait(lambda: restarted(cluster, victim["name"], victim["pid"]), "the worker is back and used")
    assert clients.failures == []


def test_a_model_that_one_worker_has_not_seen_is_asked_of_another(cache_dir, tmp_path):
    shutil.copytree(BUNDLES / "filetype", tmp_path / "filetype")
    with clustered(cache_dir, model_dirs=tmp_path, MODEL_CONTROL_MODE="static") as node:
        shutil.copytree(BUNDLES / "tabular", tmp_path / "tabular")
        kill_first(node)
        node.server.read_until("Server pool/w0 is UP")
        known = [{model["name"] for model in worker["status"]["models"]} for worker in node.workers()]
        assert ["tabular" in each for each in known] == [True, False]
        answers = [httpx.post(node.url + INFER, content=body(), timeout=60, trust_env=False) for _ in range(20)]
        assert {answer.status_code for answer in answers} == {200}
        missing = httpx.post(node.url + "/v2/models/nobody/infer", content=body(), timeout=60, trust_env=False)
        assert (missing.status_code, missing.json()["code"]) == (404, "model_not_found")


def test_models_that_move_under_load_cost_nobody_an_answer(packing):
    with load(packing.url, INFER, LARGE) as clients:
        for count in ("all", 1, 2, 1):
            clients.wait_for_more()
            told = packing.command("/admin/cluster/set_replicas", {"model": "tabular", "replicas": count})
            assert told.status_code == 200, told.text
            assert len(packing.homes()["tabular"]) == (1 if count == 1 else 2)
        clients.wait_for_more()
        assert packing.command("/admin/cluster/set_policy", {"fill.tabular": "fill"}).status_code == 200
        packing.command("/admin/cluster/set_replicas", {"model": "tabular", "replicas": 2})
        assert packing.get("/status").json()["placement"]["models"]["tabular"]["backend"].startswith("fill_")
        clients.wait_for_more()
        packing.command("/admin/cluster/set_policy", {"fill.tabular": ""})
        packing.command("/admin/cluster/set_replicas", {"model": "tabular", "replicas": 1})
    assert clients.failures == []


def test_what_the_fleet_computes_brings_a_repack(cache_dir):
    seconds = {"CLUSTER_FIRST_REBALANCE_COMPUTE_SECONDS": "0.01", "CLUSTER_REBALANCE_COMPUTE_SECONDS": "0.02"}
    with clustered(cache_dir, **PACKING, **seconds) as node, load(node.url, INFER, body()) as clients:
        node.wait(lambda: node.get("/status").json()["placement"]["repacks"] > 2, "models were placed anew")
        node.wait(lambda: node.get("/status").json()["placement"]["models"]["tabular"]["load"] > 0, "its load is known")
    assert clients.failures == []


def test_filling_keeps_to_one_worker_while_it_has_room_and_then_takes_the_next(cache_dir):
    fill = {"CLUSTER_FILL": "fill", "CLUSTER_DEFAULT_REPLICAS": "all", "CLUSTER_QUANTUM_FACTOR": "0.001"}
    with clustered(cache_dir, **PACKING, **fill) as node:  # a quantum of one request

        def one_serves_all():
            before = node.answered()
            for _ in range(20):
                assert httpx.post(node.url + INFER, content=body(), timeout=60, trust_env=False).status_code == 200
            return sorted(node.answered()[name] - count for name, count in before.items()) == [0, 20]

        assert one_serves_all()
        os.kill(proxy_of(node), signal.SIGKILL)
        node.wait(one_serves_all, "the proxy is back, and was told who belongs together")
        before = node.answered()
        with load(node.url, INFER, LARGE, clients=8) as clients:
            node.wait(lambda: all(node.answered()[name] - before[name] > 20 for name in before), "both are used")
        assert clients.failures == []


def test_a_proxy_that_is_killed_comes_back_and_knows_where_models_are(packing):
    home = packing.homes()["tabular"]
    packing.server.read_until("placed")  # the log is read up to here
    os.kill(proxy_of(packing), signal.SIGKILL)
    before = packing.wait(packing.answered, "the proxy is back")
    for _ in range(5):
        assert httpx.post(packing.url + INFER, content=body(), timeout=60, trust_env=False).status_code == 200
    gained = {name for name, count in packing.answered().items() if count > before[name]}
    assert gained == set(home)


def proxy_of(node):
    """The process id of its proxy."""
    parent = node.server.process.pid
    return next(int(path.name) for path in Path("/proc").glob("[0-9]*") if is_proxy_of(path, parent))


def is_proxy_of(path, parent):
    try:
        stat = (path / "stat").read_text()
        return "(haproxy)" in stat and int(stat.rsplit(")", 1)[1].split()[1]) == parent
    except OSError:
        return False


def test_commands_reach_every_worker(cluster):
    told = cluster.command("/admin/set_policy", {"model": "tabular", "weight": 3})
    assert told.status_code == 200
    assert {name: each["weight"] for name, each in told.json()["workers"].items()} == {"w0": 3.0, "w1": 3.0}
    weights = [
        model["serving"]["weight"]
        for worker in cluster.workers()
        for model in worker["status"]["models"]
        if model["name"] == "tabular"
    ]
    assert weights == [3.0, 3.0]
    refused = cluster.command("/admin/set_policy", {"model": "nobody", "weight": 3})
    assert (refused.status_code, refused.json()["code"]) == (404, "model_not_found")
    assert refused.json()["error"].startswith("w0: ")
    assert httpx.post(f"{cluster.url}/admin/compact", timeout=60, trust_env=False).status_code == 401
    placed = cluster.command("/admin/cluster/repack")
    assert (placed.status_code, placed.json()["code"]) == (409, "unsupported")


@pytest.mark.parametrize("settings", [{}, PACKING], ids=["pool", "packing"])
def test_a_worker_that_was_killed_knows_what_it_was_told_before_it_is_asked_anything(cache_dir, settings):
    with clustered(cache_dir, **settings) as node, load(node.url, INFER, body()) as clients:
        assert node.command("/admin/set_policy", {"model": "tabular", "weight": 7}).status_code == 200
        clients.wait_for_more()
        kill_first(node)
        told = node.command("/admin/set_policy", {"model": "tabular", "max_batch_size": 2})
        assert told.status_code == 503
        assert "it is told when it answers (done by w1)" in told.json()["error"]
        node.server.read_until("Server pool/w0 is UP")
        assert policies(node) == [(7.0, 2)] * 2
        clients.wait_for_more()
    assert clients.failures == []


def kill_first(node):
    """Kill worker w0, and wait for the process that follows, which is far from listening then."""
    pid = node.workers()[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    node.wait(lambda: node.workers()[0]["pid"] not in (None, pid), "the worker starts anew")


def policies(node):
    """Weight and largest batch of each worker."""
    return [
        (model["serving"]["weight"], model["serving"]["max_batch_size"])
        for worker in node.workers()
        for model in worker["status"]["models"]
        if model["name"] == "tabular"
    ]


def test_metrics_are_those_of_all_workers_each_family_once(cluster):
    text = cluster.get("/metrics").text
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads)) > 20
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("worker_dispatch", "http_requests", "cluster_worker_up"):
        labels = [sample.labels for sample in families[name].samples]
        assert {each["worker"].rsplit("-", 1)[1] for each in labels} == {"w0", "w1"}
        assert {each["gpu"] for each in labels} == {"cpu"}


def test_before_a_worker_is_ready_answers_have_the_form_of_all_others(cache_dir):
    with running(cache_dir, until="serving on", RUNTIME_DEVICES="cpu:2", CLUSTER_BASE_PORT=0) as server:
        answer = httpx.post(server.url + INFER, content=body(), trust_env=False, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
        assert httpx.get(f"{server.url}/v2/health/live", trust_env=False, timeout=60).status_code == 200
        assert httpx.get(f"{server.url}/v2/health/ready", trust_env=False, timeout=60).status_code == 503


def test_the_proxy_ends_tls(cache_dir, tmp_path):
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(chain)], check=True, capture_output=True)
    files = {"ENDPOINTS_SSL_CERTFILE": str(chain), "ENDPOINTS_SSL_KEYFILE": str(key)}
    given = {"MODELS_INCLUDE": "tabular", "RUNTIME_DEVICES": "cpu:2", "CLUSTER_BASE_PORT": 0, **files}
    with running(cache_dir, until="is UP", **given) as server:
        trusted = ssl.create_default_context(cafile=str(chain))
        trusted.check_hostname = False
        with httpx.Client(base_url=f"https://{server.address}", verify=trusted, trust_env=False, timeout=30) as client:
            assert client.post(INFER, content=body()).status_code == 200


def test_at_its_end_everything_has_ended(cache_dir):
    with clustered(cache_dir) as node:
        pids = [worker["pid"] for worker in node.workers()]
        with load(node.url, INFER, body()) as clients:
            clients.wait_for_more()
            clients.end()
        assert clients.failures == []
        assert node.server.stop() == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_workers_and_proxy_end_with_a_node_that_is_killed(cache_dir):
    with clustered(cache_dir) as node:
        parent = node.server.process.pid
        children = [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        assert len(children) == 3
        node.server.process.kill()
        node.server.process.wait()
        for pid in children:
            wait_ended(pid)
