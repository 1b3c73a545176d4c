"""Bare graphs whose open first axes are no batch, served by a real process."""

import httpx
import numpy as np
import pytest

from tests.backends import models
from tests.e2e.conftest import running


def scores():
    """Every query against every document: two open extents, and an output with both."""
    nodes = [
        models.node("Transpose", ["documents"], ["t"], perm=[1, 0]),
        models.node("MatMul", ["queries", "t"], ["y"]),
    ]
    inputs = [models.value(name, models.FLOAT, [name[0], 3]) for name in ("queries", "documents")]
    return models.model(nodes, inputs, [models.value("y", models.FLOAT, ["q", "d"])])


def total():
    """One number for all that is sent."""
    nodes = [models.node("ReduceSum", ["x"], ["y"], keepdims=0)]
    return models.model(nodes, [models.value("x", models.FLOAT, ["n"])], [models.value("y", models.FLOAT, [])])


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for make in (scores, total):
        models.save(root / make.__name__, make())
    with (
        running(tmp_path_factory.mktemp("cache"), root) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        yield client


def ask(http, name, **inputs):
    """Shape and data of the answer."""
    tensors = [
        {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    answer = http.post(f"/v2/models/{name}/infer", json={"inputs": tensors})
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["outputs"]
    return output["shape"], output["data"]


@pytest.mark.parametrize(("queries", "documents"), [(1, 1), (2, 5), (5, 2), (40, 1), (0, 3), (3, 0)])
def test_two_open_extents_need_not_be_equal(http, queries, documents):
    q, d = (np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) for rows in (queries, documents))
    shape, data = ask(http, "scores", queries=q, documents=d)
    assert shape == [queries, documents]
    assert data == (q @ d.T).ravel().tolist()


@pytest.mark.parametrize("count", [0, 1, 40])
def test_an_open_extent_may_be_empty(http, count):
    assert ask(http, "total", x=np.ones(count, np.float32)) == ([], [count])
