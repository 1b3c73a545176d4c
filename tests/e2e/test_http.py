"""Routes, errors, access and metrics of a real process."""

import re
import socket

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import running

ROW = [0.5] * 30


def v2(**changes):
    return {"inputs": [{"name": "X", "shape": [1, 30], "datatype": "FP32", "data": ROW}], **changes}


def test_json_in_and_out(http):
    answer = http.post("/v2/models/tabular/infer", json=v2(id="a"))
    assert answer.status_code == 200
    body = answer.json()
    assert list(body) == ["id", "model_name", "model_version", "outputs"]
    assert [output["name"] for output in body["outputs"]] == ["label", "probabilities"]
    assert abs(sum(body["outputs"][1]["data"]) - 1) < 1e-6


def test_every_answer_tells_where_the_time_went_and_which_request_it_was(http):
    answer = http.post("/v2/models/tabular/infer", json=v2(), headers={"X-Request-Id": "mine"})
    stages = re.findall(r"(\w+);dur=[\d.]+", answer.headers["server-timing"])
    assert stages == ["decode", "preprocess", "queue", "load", "compute", "postprocess", "encode"]
    assert answer.headers["x-request-id"] == "mine"
    other = http.post("/v2/models/tabular/infer", json=v2())
    assert other.headers["x-request-id"] not in ("", "mine")


def test_explain_tells_the_batch(http):
    parameters = http.post("/v2/models/tabular/infer", json=v2(parameters={"explain": True})).json()["parameters"]
    assert parameters == {"batch_rows": 1, "batch_size": 1}


def test_the_version_is_the_one_served(http):
    assert http.post("/v2/models/tabular/versions/1/infer", json=v2()).status_code == 200
    answer = http.post("/v2/models/tabular/versions/2/infer", json=v2())
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v2/models/absent", 404, "model_not_found"),
        ("GET", "/v2/models/absent/ready", 404, "model_not_found"),
        ("POST", "/v2/models/absent/infer", 404, "model_not_found"),
        ("GET", "/v2/models/tabular/infer", 405, "method_not_allowed"),
        ("DELETE", "/v2/models/tabular/infer", 405, "method_not_allowed"),
        ("TRACE", "/v2", 405, "method_not_allowed"),
        ("POST", "/v2/models/tabular/infer/", 404, "not_found"),
        ("POST", "/v2/models/%2e%2e%2fetc/infer", 404, None),
        ("POST", "/v2/models/" + "x" * 5000 + "/infer", 404, "model_not_found"),
        ("POST", "/admin/set_policy", 401, "unauthorized"),
        ("GET", "/admin/status", 401, "unauthorized"),
        ("GET", "/admin//status", 401, "unauthorized"),
        ("POST", "/v2/repository/models/tabular/unload", 401, "unauthorized"),
        ("POST", "/v2/repository/models/tabular/load", 401, "unauthorized"),
        ("GET", "/v2/models/tabular/versions/9/ready", 404, "model_not_found"),
        ("GET", "/v2/models/tabular/versions/9/config", 404, "model_not_found"),
        ("GET", "/v2/models/absent/stats", 404, "model_not_found"),
        ("POST", "/v2/logging", 401, "unauthorized"),
        ("GET", "/v2/trace/setting", 404, "not_found"),
        ("POST", "/v2/models/tabular/generate", 404, "not_found"),
        ("GET", "/v2/cudasharedmemory/status", 404, "not_found"),
        ("GET", "/v2/systemsharedmemory/status", 404, "not_found"),
        ("POST", "/v2/systemsharedmemory/region/r/register", 404, "not_found"),
    ],
)
def test_every_refusal_has_an_error_and_a_code(http, method, path, status, code):
    answer = http.request(method, path, content=b"{}" if method == "POST" else None)
    assert answer.status_code == status
    body = answer.json()
    assert set(body) == {"error", "code"}
    assert isinstance(body["error"], str)
    assert code in (None, body["code"])
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("value", ["-1", "1.5", "soon", "true", "1e3"])
@pytest.mark.parametrize("name", ["X-Request-Timeout-Ms", "X-Envoy-Expected-Rq-Timeout-Ms"])
def test_a_bad_timeout_header_is_named(http, name, value):
    answer = http.post("/v2/models/tabular/infer", json=v2(), headers={name: value})
    assert answer.status_code == 400
    assert name.lower() in answer.json()["error"]


@pytest.mark.parametrize("value", ["0", "60000", "99999999999999999999999"])
def test_a_good_timeout_header_changes_nothing(http, value):
    assert http.post("/v2/models/tabular/infer", json=v2(), headers={"X-Request-Timeout-Ms": value}).status_code == 200


def test_an_encoding_that_is_not_decoded_is_415(http):
    answer = http.post("/v2/models/tabular/infer", content=b"x", headers={"Content-Encoding": "br"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_the_documentation_lists_every_route(http):
    paths = http.get("/openapi.json").json()["paths"]
    for path in ("/v2/models/{model}/infer", "/metrics", "/status", "/admin/set_policy", "/v2/repository/index", "/"):
        assert path in paths
    assert http.get("/docs").status_code == 200
    assert http.get("/").json()["v2"] == "/v2"


def test_metrics_count_what_was_served(http):
    def value(name, **labels):
        for line in http.get("/metrics").text.splitlines():
            found = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
            if found and all(f'{key}="{text}"' in found[1] for key, text in labels.items()):
                return float(found[2])
        raise AssertionError(f"no series {name} with {labels}")

    names = ("worker_dispatch_total", "worker_requests_served_total", "worker_rows_served_total")
    before = {name: value(name, model="tabular") for name in names}
    ok = value("worker_requests_total", model="tabular", status="ok")
    failed = value("worker_requests_total", model="tabular", status="failed")
    assert http.post("/v2/models/tabular/infer", json=v2()).status_code == 200
    assert http.post("/v2/models/tabular/infer", json={"inputs": []}).status_code == 400
    assert {name: value(name, model="tabular") - before[name] for name in names} == dict.fromkeys(names, 1)
    assert value("worker_requests_total", model="tabular", status="ok") == ok + 1
    assert value("worker_requests_total", model="tabular", status="failed") == failed + 1
    assert value("worker_queue_depth", model="tabular") == 0
    assert value("worker_inflight_requests", model="tabular") == 0
    assert value("worker_request_latency_seconds_count", model="tabular") >= ok + 1
    assert value("worker_queue_wait_seconds", model="filetype", quantile="0.99") >= 0
    assert value("worker_info", backend="cpu") == 1


def test_unknown_models_never_become_labels(http):
    http.post("/v2/models/made-up-name/infer", json=v2())
    assert "made-up-name" not in http.get("/metrics").text


def test_status_shows_every_model(http):
    models = {model["name"]: model for model in http.get("/status").json()["models"]}
    assert set(models) == {"filetype", "orientation", "tabular"}
    assert models["tabular"]["serving"]["batch_axis"] == {"input": "X", "axis": 1}
    assert models["tabular"]["serving"]["batchable"] is True


def test_the_admin_token_is_made_kept_and_asked_for(server, cache_dir):
    file = cache_dir / f"admin-token-{server.port}"
    assert file.stat().st_mode & 0o777 == 0o600
    headers = {"Authorization": f"Bearer {file.read_text()}"}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False, headers=headers) as admin:
        assert admin.get("/admin/status").status_code == 200
        answer = admin.post("/admin/set_policy", json={"model": "tabular", "weight": 2.5})
        assert answer.json()["weight"] == 2.5
        models = {model["name"]: model for model in admin.get("/status").json()["models"]}
        assert models["tabular"]["serving"]["weight"] == 2.5
        assert admin.post("/admin/set_policy", json={"model": "absent", "weight": 1}).status_code == 404
        bad = admin.post("/admin/set_policy", json={"model": "tabular", "weight": -1})
        assert (bad.status_code, "weight" in bad.json()["error"]) == (400, True)
        unknown = admin.post("/admin/set_policy", json={"model": "tabular", "wieght": 1})
        assert (unknown.status_code, "wieght" in unknown.json()["error"]) == (400, True)
        assert admin.post("/v2/repository/models/tabular/unload").status_code == 409
    wrong = httpx.get(f"{server.url}/admin/status", headers={"Authorization": "Bearer x"}, timeout=60, trust_env=False)
    assert (wrong.status_code, wrong.json()["code"]) == (403, "forbidden")


OPEN = ["/v2/health/live", "/v2/health/ready", "/metrics"]
API = [
    ("GET", "/"),
    ("GET", "/v2"),
    ("GET", "/v2/models"),
    ("GET", "/v2/models/tabular"),
    ("GET", "/v2/models/tabular/ready"),
    ("GET", "/status"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/models/tabular/infer"),
    ("POST", "/v2/models/tabular/versions/1/infer"),
    ("POST", "//v2/models/tabular/infer"),
    ("GET", "/nowhere"),
]


def test_with_an_api_token_only_probes_and_metrics_are_open(cache_dir):
    with (
        running(cache_dir, ENDPOINTS_API_TOKEN="a-secret", ENDPOINTS_ADMIN_TOKEN="b-secret") as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        for path in OPEN:
            assert client.get(path).status_code == 200
        for method, path in API:
            content = b"{}" if method == "POST" else None
            assert client.request(method, path, content=content).status_code == 401, path
            wrong = client.request(method, path, content=content, headers={"Authorization": "Bearer b"})
            assert wrong.status_code == 403, path
            for token in ("a-secret", "b-secret"):
                right = client.request(method, path, content=content, headers={"Authorization": f"Bearer {token}"})
                assert right.status_code not in (401, 403), path
        admin = client.get("/admin/status", headers={"Authorization": "Bearer a-secret"})
        assert admin.status_code == 403


def test_a_second_start_on_a_busy_port_names_the_setting_and_leaves_the_first_its_token(tmp_path):
    with running(tmp_path / "cache", tmp_path) as first:
        file = tmp_path / "cache" / f"admin-token-{first.port}"
        headers = {"Authorization": f"Bearer {file.read_text()}"}
        with (
            pytest.raises(AssertionError, match=r"INFERENCE_SERVER_ENDPOINTS_PORT=\d+: cannot listen on") as caught,
            running(tmp_path / "cache", tmp_path, ENDPOINTS_PORT=first.port),
        ):
            pass
        assert "settings" not in str(caught.value), "it went on to build what it cannot serve"
        with httpx.Client(base_url=first.url, timeout=60, trust_env=False, headers=headers) as admin:
            assert admin.get("/admin/status").status_code == 200
        assert first.stop() == 0
        assert not file.exists()


def test_a_token_that_a_later_server_made_stays(tmp_path):
    with running(tmp_path / "cache", tmp_path) as server:
        file = tmp_path / "cache" / f"admin-token-{server.port}"
        file.write_text("that of another")
        assert server.stop() == 0
    assert file.read_text() == "that of another"


def test_a_drained_server_ends_with_zero_and_frees_its_port(cache_dir):
    with running(cache_dir) as server:
        assert httpx.get(f"{server.url}/v2/health/ready", timeout=60, trust_env=False).status_code == 200
        assert server.stop() == 0
        assert np.any(["draining" in line for line in "".join(server.log).splitlines()])


def test_a_models_default_timeout_holds_for_requests_that_name_none(cache_dir):
    models = '{"tabular": {"default_timeout_ms": 0.001}}'
    with running(cache_dir, SCHEDULER_MODELS=models) as server:
        answer = httpx.post(f"{server.url}/v2/models/tabular/infer", json=v2(), timeout=60, trust_env=False)
        assert answer.status_code == 504
        assert answer.json()["code"] in ("deadline_exceeded", "deadline_infeasible")


def test_a_cache_that_cannot_be_written_stops_the_start_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    refusal = pytest.raises(AssertionError, match=r"INFERENCE_SERVER_CACHE_DIR=.* cannot be written")
    with refusal, running(tmp_path / "file" / "cache"):
        pass


def test_either_door_ends_what_is_no_request_and_waits_for_no_head_without_end(either):
    """The limits of heads and bodies, and of their time, are those of the connection, whoever answers."""
    with socket.create_connection(("127.0.0.1", either.port), timeout=60) as connection:
        connection.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"malformed_request" in answer
    with socket.create_connection(("127.0.0.1", either.port), timeout=60) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nX: " + b"x" * 70_000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
