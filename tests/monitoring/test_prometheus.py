"""A real Prometheus, with the scrape file and the dashboard that ship, and a real server."""

import json
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import environment
from tests.e2e.conftest import free_port, running

pytestmark = pytest.mark.clients

MONITORING = Path(__file__).parents[2] / "load_tests" / "monitoring"

DASHBOARD = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))

QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]

#: What the dashboard's variables stand for here.
VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$worker": ".*"}

#: Panels that are empty while nothing goes wrong.
MAY_BE_EMPTY = ("worker_drops_total", "worker_weight_load_seconds_total")


def tool(name):
    """A program of Debian's package `prometheus`."""
    return environment("prometheus") / "usr" / "bin" / name


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("cache"), MODELS_INCLUDE="tabular") as process:
        yield process


@contextmanager
def scraping(server, folder):
    """A Prometheus that scrapes the server twice a second; a client of its API."""
    config = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
    assert "127.0.0.1:8000" in config
    assert "scrape_interval: 10s" in config
    file = folder / "prometheus.yml"
    file.write_text(config.replace("127.0.0.1:8000", server.address).replace("10s", "500ms"), encoding="utf-8")
    port = free_port()
    command = [
        tool("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client,
    ):
        try:
            yield client
        finally:
            process.terminate()


def ask_for(client, query):
    """The result of a query."""
    answer = client.get("/api/v1/query", params={"query": query})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]["result"]


def wait_for(client, query, tries=200):
    """The result of a query, once there is one."""
    pause = threading.Event()
    for _ in range(tries):
        try:
            if found := ask_for(client, query):
                return found
        except httpx.TransportError:  # it is starting
            pass
        pause.wait(0.2)
    raise AssertionError(f"no result of {query}")


def infer(server, rows):
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [rows, 30], "data": [1.0] * 30 * rows}]}
    answer = httpx.post(f"{server.url}/v2/models/tabular/infer", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200


def test_the_metrics_are_clean(server):
    infer(server, 3)
    text = httpx.get(f"{server.url}/metrics", timeout=60, trust_env=False).text
    checked = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_scrape_file_is_valid():
    command = [tool("promtool"), "check", "config", str(MONITORING / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_scrapes_the_server_and_every_panel_has_an_answer(server, tmp_path):
    with scraping(server, tmp_path) as client:
        assert wait_for(client, "up == 1")
        served = wait_for(client, 'worker_requests_total{status="ok"}')[0]
        assert served["metric"]["model"] == "tabular"
        for rows in (1, 3, 3, 40):
            infer(server, rows)
        count = int(served["value"][1]) + 4
        assert wait_for(client, f'worker_requests_total{{status="ok"}} >= {count}')
        assert wait_for(client, "rate(worker_requests_total[1m]) > 0")
        httpx.get(f"{server.url}/v2", timeout=60, trust_env=False)
        for query in QUERIES:
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            if any(name in query for name in MAY_BE_EMPTY):
                ask_for(client, query)
            else:
                assert wait_for(client, query)
