"""Models whose rows reach one another, served by a real process, against plain ONNX Runtime in this one."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from tests.backends import models
from tests.e2e.conftest import running

BUNDLES = {
    "sums": (models.running_sum, ""),
    "memory": (models.gated, ""),
    "centred": (models.centred, ""),
    "top": (models.reduced, ""),
    "mixed": (models.running_sum, ", verify: off"),
    "warned": (models.running_sum, ", verify: warn"),
    "quantised": (models.quantised, ""),
    "poisoned": (models.poisoned_by_zeros, ""),
    "mended": (models.poisoned_by_zeros, ", padding: repeat"),
}

#: A request waits so long for company; two rows fill the largest size, and are not kept waiting. By what executions
#: cost on a busy machine two small ones may be taken to be cheaper: so batches are filled.
WAIT = json.dumps({name: {"max_wait_ms": 5000} for name in ("sums", "mixed", "warned")})


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, (make, keys) in BUNDLES.items():
        models.save(root / name, make()[0])
        sizes = "[2]" if "poisoned" in make.__name__ else "[1, 2]"
        (root / name / "manifest.yaml").write_text(
            f'format_version: "1"\nbatching: {{compiled_batch_sizes: {sizes}{keys}}}\n'
        )
    return root


@pytest.fixture(scope="module")
def server(cache, model_dirs):
    with running(cache, model_dirs, SCHEDULER_MODELS=WAIT, SCHEDULER_SIZING="fill") as process:
        yield process


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


def rows(count, seed):
    return np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)


def ask(http, name, x):
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    answer = http.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["outputs"]
    data = [np.nan if value is None else value for value in output["data"]]
    return np.array(data, np.float32).reshape(output["shape"])


def plain(name, x):
    session = ort.InferenceSession(BUNDLES[name][0]()[0].SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


def serving(http, name):
    return next(model for model in http.get("/status").json()["models"] if model["name"] == name)["serving"]


def ask_at_once(http, name, *requests):
    """The answers to requests that are in flight together, and how many dispatches they took."""
    before = serving(http, name)["dispatches"]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda x: ask(http, name, x), requests))
    return answers, serving(http, name)["dispatches"] - before


@pytest.mark.parametrize("name", ["sums", "memory", "centred", "top"])
def test_what_has_no_batch_axis_is_said_so_and_served_alone(http, name):
    told = serving(http, name)
    assert (told["batchable"], told["batch_safety"]) == (False, "unsafe")
    assert told["batching_reason"].endswith("requests run alone, at their own number of rows")
    properties = http.get(f"/v2/models/{name}").json()["properties"]
    assert (properties["batchable"], properties["batching_reason"]) == ("false", told["batching_reason"])


@pytest.mark.parametrize("name", ["sums", "memory", "centred", "top"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_it_is_neither_cut_nor_padded(http, name, count):
    x = rows(count, seed=count)
    np.testing.assert_allclose(ask(http, name, x), plain(name, x), rtol=1e-5, atol=1e-6)


def test_two_callers_at_once_each_get_their_own_answer(http):
    requests = [rows(1, seed) for seed in (10, 11)]
    answers, dispatches = ask_at_once(http, "sums", *requests)
    assert dispatches == 2
    for x, answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(answer, x, rtol=1e-6)


@pytest.mark.parametrize(("name", "verdict"), [("mixed", "off"), ("warned", "unsafe")])
def test_without_enforcement_they_are_merged_and_one_gets_the_others_sum(http, name, verdict):
    """Which shows that the test above could fail."""
    requests = [rows(1, seed) for seed in (10, 11)]
    answers, dispatches = ask_at_once(http, name, *requests)
    assert dispatches == 1
    both = requests[0] + requests[1]
    assert sum(np.allclose(answer, both, rtol=1e-5) for answer in answers) == 1
    told = serving(http, name)
    assert (told["batchable"], told["batch_safety"]) == (True, verdict)


def test_an_approximation_is_batched_and_states_its_figure(http):
    told = serving(http, "quantised")
    assert (told["batchable"], told["batch_safety"]) == (True, "approximate")
    assert 0 < told["batch_deviation"] <= 0.05
    assert "of its range" in told["batching_reason"]


def test_rows_are_repeated_where_zeros_would_poison_the_batch(http):
    x = rows(1, seed=20)
    assert (serving(http, "mended")["batchable"], serving(http, "mended")["batch_safety"]) == (True, "safe")
    np.testing.assert_allclose(ask(http, "mended", x), plain("mended", x), rtol=1e-5)
    assert serving(http, "mended")["padded_rows"] > 0
    assert "padding: repeat would mend it" in serving(http, "poisoned")["batching_reason"]
    np.testing.assert_allclose(ask(http, "poisoned", x), plain("poisoned", x), rtol=1e-5)
    assert serving(http, "poisoned")["padded_rows"] == 0


def test_a_second_start_has_the_verdicts_without_measuring_again(server, http, cache, model_dirs):
    entries = {entry: entry.stat().st_mtime_ns for entry in (cache / "entries").iterdir()}
    with running(cache, model_dirs) as again, httpx.Client(base_url=again.url, timeout=60, trust_env=False) as other:
        for name in BUNDLES:
            first, second = serving(http, name), serving(other, name)
            for field in ("batchable", "batch_safety", "batch_deviation", "batching_reason"):
                assert first[field] == second[field]
    assert {entry: entry.stat().st_mtime_ns for entry in (cache / "entries").iterdir()} == entries
