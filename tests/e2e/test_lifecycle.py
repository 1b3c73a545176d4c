"""Models that are reloaded, renamed, added and removed under the hands of their clients."""

import os
import threading
from collections import Counter
from contextlib import contextmanager

import httpx
from onnx import TensorProto, helper

from tests.e2e.conftest import running

CLIENTS = 16

FAST_LOOKS = {"MODEL_POLL_SECONDS": "0.05"}


def write_adder(path, constant):
    """A bundle whose model adds a constant, which tells its version; it appears whole."""
    path.mkdir(exist_ok=True)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    added = helper.make_tensor("added", TensorProto.FLOAT, [], [float(constant)])
    node = helper.make_node("Add", ["x", "added"], ["y"])
    graph = helper.make_graph([node], "adder", tensors[:1], tensors[1:], [added])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path / "manifest.yaml").write_text('format_version: "1"\nbatching: {compiled_batch_sizes: [1, 4, 16]}\n')
    part = path / ".model.onnx.part"
    part.write_bytes(model.SerializeToString())
    part.rename(path / "model.onnx")
    return path


class Client(threading.Thread):
    """Asks one model over and over; keeps what it added to each row, or how it failed."""

    def __init__(self, server, model, stop):
        super().__init__(daemon=True)
        self.server, self.model, self.stop = server, model, stop
        self.added: Counter[tuple[float, ...]] = Counter()
        self.failures = []

    def run(self):
        tensor = {"name": "x", "shape": [3, 3], "datatype": "FP32", "data": [1.0, 2.0, 3.0] * 3}
        with httpx.Client(base_url=self.server.url, trust_env=False, timeout=60) as http:
            while not self.stop.is_set():
                try:
                    answer = http.post(f"/v2/models/{self.model}/infer", json={"inputs": [tensor]})
                except httpx.TransportError as error:
                    self.failures.append((0, f"{type(error).__name__}: {error}"))
                    break
                if answer.status_code != 200:
                    self.failures.append((answer.status_code, answer.text))
                    continue
                given = answer.json()["outputs"][0]["data"]
                self.added[tuple(sorted({out - x for out, x in zip(given, [1.0, 2.0, 3.0] * 3, strict=True)}))] += 1


@contextmanager
def hammering(server, model):
    stop = threading.Event()
    clients = [Client(server, model, stop) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        stop.set()
        for client in clients:
            client.join(60)


def until(condition):
    while not condition():
        pass


def status(server, name):
    models = httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["models"]
    return next((model for model in models if model["name"] == name), None)


def answers(server, model):
    """What the model adds now; None while it is not served."""
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.0] * 3}
    answer = httpx.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=60, trust_env=False)
    return answer.json()["outputs"][0]["data"][0] if answer.status_code == 200 else None


def assert_all_went_well(clients, versions):
    assert [client.failures for client in clients if client.failures] == []
    for client in clients:
        assert client.added, "a client that was never answered shows nothing"
        assert all(len(added) == 1 and added[0] in versions for added in client.added), client.added


def test_no_request_fails_while_its_model_is_reloaded_fifty_times(cache_dir, tmp_path):
    write_adder(tmp_path / "m", 0)
    with running(cache_dir, tmp_path, **FAST_LOOKS) as server, hammering(server, "m") as clients:
        for version in range(1, 51):
            write_adder(tmp_path / "m", version)
            until(lambda version=version: answers(server, "m") == version)
            if version % 10 == 0:
                other = write_adder(tmp_path / "other", version)
                until(lambda version=version: answers(server, "other") == version)
                for file in other.iterdir():
                    file.unlink()
                other.rmdir()
                until(lambda: answers(server, "other") is None)
    assert_all_went_well(clients, range(51))
    assert sum([client.added.total() for client in clients]) > 500


def test_a_chain_of_renames_loses_no_request_and_compiles_nothing(cache_dir, tmp_path):
    write_adder(tmp_path / "production", 1000)
    write_adder(tmp_path / "staging", 1001)
    # Two looks in a row never fall between the two renames, however long this process has to wait for its turn there.
    with running(cache_dir, tmp_path, MODEL_POLL_SECONDS="0.5") as server:
        entries = set(os.listdir(cache_dir / "entries"))
        before = status(server, "staging")["serving"]
        with hammering(server, "production") as clients:
            until(lambda: all(client.added for client in clients))
            (tmp_path / "production").rename(tmp_path / "old")
            (tmp_path / "staging").rename(tmp_path / "production")
            until(lambda: answers(server, "production") == 1001)
            until(lambda: status(server, "staging") is None)
            until(lambda: all((1001.0,) in client.added for client in clients))
        assert_all_went_well(clients, (1000, 1001))
        assert answers(server, "old") == 1000
        after, old = status(server, "production")["serving"], status(server, "old")["serving"]
        assert after["digest"] == before["digest"]
        assert old["ok"] >= sum([client.added[(1000.0,)] for client in clients])
        assert after["ok"] >= sum([client.added[(1001.0,)] for client in clients])
        assert set(os.listdir(cache_dir / "entries")) == entries


def test_every_accepted_request_is_answered_when_the_server_is_told_to_end(cache_dir, tmp_path):
    write_adder(tmp_path / "m", 7)
    with running(cache_dir, tmp_path, DRAIN_DELAY_SECONDS="1") as server:
        with hammering(server, "m") as clients:
            until(lambda: all(client.added for client in clients))
            server.process.terminate()
            server.read_until("draining")
            assert httpx.get(f"{server.url}/v2/health/ready", timeout=60, trust_env=False).status_code == 503
            told = server.process.communicate(timeout=60)[1]
        assert server.process.returncode == 0
        assert "giving up" not in told
    for client in clients:
        assert set(client.added) == {(7.0,)}
        # Refused in so many words, or told by a closed connection before anything was accepted.
        *refused, (code, text) = client.failures
        assert all(code == 503 and "shutting down" in text for code, text in refused), refused
        assert code == 503 or text.startswith(("ConnectError", "RemoteProtocolError: Server disconnected", "ReadError"))
