"""`inference-server cluster …`, against a node that answers what a real one would."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.cli import main

STATUS: dict[str, Any] = {
    "mode": "lpt_packing",
    "draining": False,
    "workers": [
        {"name": "w0", "device": "0", "address": "127.0.0.1:8001", "pid": 7, "starts": 1, "status": {
            "alive": True, "queue_depth": 3, "resident_weight_bytes": 5_000_000, "models": [
                {"serving": {"ok": 4}}, {"serving": None}]}},
        {"name": "w1", "device": "1", "address": "127.0.0.1:8002", "pid": None, "starts": 2, "status": None},
    ],
    "placement": {
        "repacks": 2,
        "warnings": ["model b has drifted: not all ready workers have it"],
        "policy": {"hysteresis": 0.2},
        "models": {"a": {"workers": ["w0", "w1"], "backend": "pool", "load": 0.25, "weight_bytes": 1000}},
        "workers": {"w0": {"load": 0.125, "weight_bytes": 1000}, "w1": {"load": 0.125, "weight_bytes": 1000}},
    },
}  # fmt: skip


class Server(ThreadingHTTPServer):
    """What it says of itself, and what it was told."""

    status: dict[str, Any] = STATUS

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Node)
        self.commands: list[Any] = []


class Node(BaseHTTPRequestHandler):
    """Notes commands; says no to `nobody`."""

    server: Server

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.answer(200, self.server.status)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.commands.append((self.path, body, self.headers["Authorization"]))
        if body.get("model") == "nobody":
            self.answer(404, {"error": "unknown model 'nobody'", "code": "model_not_found"})
        else:
            self.answer(200, STATUS["placement"])

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def node(monkeypatch, tmp_path):
    monkeypatch.setenv("INFERENCE_SERVER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("INFERENCE_SERVER_ENDPOINTS_ADMIN_TOKEN", "secret\n")  # as in a file
    with Server() as server:
        monkeypatch.setenv("INFERENCE_SERVER_ENDPOINTS_PORT", str(server.server_port))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def run(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["cluster", *arguments])
        out, err = capsys.readouterr()
        return (1, out, err + ended.value.code) if isinstance(ended.value.code, str) else (ended.value.code, out, err)

    return run


def rows(out):
    """The cells of the tables' rows."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]


def test_status_shows_workers_models_and_what_is_wrong(node, run):
    code, out, _ = run("status")
    assert code == 0
    assert "lpt_packing, 2 workers, placed 2 times" in out
    assert rows(out) == [
        ["w0", "0", "127.0.0.1:8001", "7", "1", "alive", "3", "4", "5 MB", "12%"],
        ["w1", "1", "127.0.0.1:8002", "", "2", "silent", "", "", "", "12%"],
        ["a", "w0, w1", "25.0%", "1 kB", "pool"],
    ]
    assert "model b has drifted" in out


@pytest.mark.parametrize("order", [["--url", "{}", "status"], ["status", "--url", "{}"]])
def test_the_address_stands_before_or_behind_the_command(node, run, monkeypatch, order):
    monkeypatch.delenv("INFERENCE_SERVER_ENDPOINTS_PORT")
    code, out, _ = run(*[each.format(f"http://127.0.0.1:{node.server_port}/") for each in order])
    assert code == 0
    assert "2 workers" in out


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["repack"], "/admin/cluster/repack", {}),
        (["set-replicas", "a", "2"], "/admin/cluster/set_replicas", {"model": "a", "replicas": 2}),
        (["set-replicas", "a", "all"], "/admin/cluster/set_replicas", {"model": "a", "replicas": "all"}),
        (["set-policy", "hysteresis=0.2", "fill.a=fill"], "/admin/cluster/set_policy",
         {"hysteresis": 0.2, "fill.a": "fill"}),
    ],
)  # fmt: skip
def test_a_command_goes_to_its_route_and_shows_what_came_of_it(node, run, arguments, path, body):
    code, out, _ = run(*arguments)
    assert code == 0
    assert node.commands == [(path, body, "Bearer secret")]
    assert len(rows(out)) == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["set-replicas", "a"], "set-replicas MODEL N"),
        (["set-policy", "hysteresis"], "write KEY=VALUE"),
        (["repack", "now"], "takes no arguments, got now"),
        (["set-replicas", "nobody", "2"], "answers 404: unknown model 'nobody'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(node, run, arguments, complaint):
    code, _, err = run(*arguments)
    assert code == 1
    assert complaint in err


def test_one_worker_is_no_cluster(node, run):
    node.status = {"models": []}
    code, _, err = run("status")
    assert code == 1
    assert "is one worker, no cluster" in err


def test_the_plain_status_shows_each_worker(node, capsys):
    node.status = {"workers": [{"name": "w0", "status": None}, {"name": "w1", "status": None}]}
    with pytest.raises(SystemExit):
        main(["status"])
    assert "w0" in (out := capsys.readouterr().out)
    assert out.count("silent") == 2
