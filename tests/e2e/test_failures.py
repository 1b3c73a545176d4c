"""Things that break around a real server: bad bundles beside good ones, and a compile cache that somebody removes."""

import os
import shutil
import time

import httpx
import numpy as np
import pytest

from tests.backends import models
from tests.builders import write_identity_bundle
from tests.e2e.conftest import running


def infer(server, name, rows=1):
    tensor = {"name": "x", "shape": [rows, 33], "datatype": "FP32", "data": [1.0] * 33 * rows}
    return httpx.post(f"{server.url}/v2/models/{name}/infer", json={"inputs": [tensor]}, trust_env=False, timeout=60)


def until_served(server, name):
    """Ask as a client does that is told to come again; the answers before the good one."""
    refused, limit = [], time.monotonic() + 60
    while (answer := infer(server, name)).status_code != 200:
        refused.append(answer)
        assert time.monotonic() < limit, answer.text
    return refused


def states(server):
    status = httpx.get(f"{server.url}/status", trust_env=False, timeout=60).json()
    return {model["name"]: (model["state"], model["reason"]) for model in status["models"]}


def test_each_bad_bundle_says_what_is_wrong_and_the_good_one_serves(tmp_path):
    root = tmp_path / "bundles"
    for name in ("corrupt", "foreign", "good", "halved"):
        models.save(root / name, models.mlp()[0])
    (root / "corrupt" / "model.onnx").write_bytes(b"junk")
    built = models.mlp()[0]
    built.graph.node[0].op_type = "Teleport"
    (root / "foreign" / "model.onnx").write_bytes(built.SerializeToString())
    os.truncate(root / "halved" / "model.onnx", 1000)
    with running(tmp_path / "cache", root) as server:
        assert infer(server, "good").status_code == 200
        told = states(server)
        assert told.pop("good") == ("READY", "")
        assert {state for state, _ in told.values()} == {"UNAVAILABLE"}
        for name, (_, reason) in told.items():
            assert str(root / name / "model.onnx") in reason
            answer = infer(server, name)
            assert answer.status_code == 503
            assert "/status says why" in answer.json()["error"]
            assert str(root) not in answer.text
    assert list((tmp_path / "cache" / "scratch").iterdir()) == []


@pytest.mark.parametrize("damage", ["removed", "cut short"])
def test_weights_that_are_gone_from_the_disk_when_they_are_needed_are_compiled_anew(tmp_path, damage):
    root, cache = tmp_path / "bundles", tmp_path / "cache"
    for name, sizes in (("a", [1, 2]), ("b", [1, 3])):
        models.save(root / name, models.mlp()[0])
        (root / name / "manifest.yaml").write_text(
            f'format_version: "1"\nbatching: {{compiled_batch_sizes: {sizes}}}\n'
        )
    settings = {"RUNTIME_DEVICE_MEMORY_BYTES": 10**9}
    with running(cache, root, **settings) as server:
        before = infer(server, "a").json()["outputs"][0]["data"]
    with running(cache, root, **settings) as server:  # what was measured before is loaded when it is asked for
        if damage == "removed":
            shutil.rmtree(cache)
        else:
            for entry in (cache / "entries").iterdir():
                os.truncate(entry / "weights.bin", 100)
        for name in "ab":
            refused = until_served(server, name)
            assert refused
            assert {(each.status_code, each.json()["code"]) for each in refused} == {(503, "load_failed")}
            assert "retry-after" in refused[0].headers
        assert np.allclose(infer(server, "a").json()["outputs"][0]["data"], before)
        assert states(server) == {"a": ("READY", ""), "b": ("READY", "")}


def test_a_cache_that_is_removed_under_a_running_server_changes_nothing_for_what_is_loaded(tmp_path):
    root, cache = tmp_path / "bundles", tmp_path / "cache"
    models.save(root / "a", models.mlp()[0])
    with running(cache, root, MODEL_POLL_SECONDS="0.1") as server:
        before = infer(server, "a").json()["outputs"]
        shutil.rmtree(cache)
        assert infer(server, "a").json()["outputs"] == before
        write_identity_bundle(root, "late")
        server.read_until("model late: ready")
        assert infer(server, "a").json()["outputs"] == before
