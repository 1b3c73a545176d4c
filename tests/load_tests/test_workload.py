"""What a scenario may say, and what the command line makes of it."""

import json

import numpy as np
import pytest

from app.domain.config import SchedulerConfig
from load_tests.fleet import parse_settings, variables, variants
from load_tests.run import add_options, workload_of
from load_tests.scenarios import WORKLOADS
from load_tests.wire import infer_call, random_inputs
from load_tests.workload import Arrivals, Call, Workload, read


def options(*arguments):
    import argparse

    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(arguments)


def test_a_file_says_everything_that_a_ready_scenario_can(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\nmodels: {m: mlp 8 4}\ncalls: [{model: m, rows: 2, extents: {x: [8]}}]\n"
        "arrivals: {kind: gamma, rate: 50, cv: 2}\nseconds: 3\n"
    )
    found = read(path)
    assert found.calls == (Call(model="m", rows=2, extents={"x": (8,)}),)
    assert found.arrivals == Arrivals(kind="gamma", rate=50, cv=2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("calls: [{rows: 1}]", "calls.0.model"),
        ("calls: [{model: m, rows: 0}]", "calls.0.rows"),
        ("arrivals: {kind: poisson}", "open loop needs a rate"),
        ("speed: 3", "speed"),
        ("a: [", "one.yaml"),
    ],
)
def test_a_mistake_is_named_with_its_file(text, complaint, tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint) as caught:
        read(path)
    assert "one.yaml" in str(caught.value)


@pytest.mark.parametrize("name", WORKLOADS)
def test_ready_scenarios_ask_models_that_they_serve(name):
    workload = WORKLOADS[name]
    assert {call.model for call in workload.calls} <= set(workload.models)
    times = workload.arrivals.times(2.0, np.random.default_rng(1))
    assert (times is None) == (workload.arrivals.kind == "closed")


def test_calls_come_in_proportion_to_their_weights():
    workload = Workload(calls=(Call(model="a", weight=3), Call(model="b")))
    counts = np.bincount(workload.mixture(100_000, np.random.default_rng(1)))
    assert counts == pytest.approx([75_000, 25_000], rel=0.02)


def test_options_change_a_ready_scenario():
    found = workload_of(options("digits", "--rate", "500", "--seconds", "4", "--rows", "8", "--deadline-ms", "20"))
    assert found.arrivals == Arrivals(kind="poisson", rate=500, connections=32)
    assert found.calls == (Call(model="digits", rows=8, deadline_ms=20),)
    assert found.seconds == 4


def test_an_open_scenario_can_be_closed():
    found = workload_of(options("poisson", "--kind", "closed", "--connections", "4"))
    assert found.arrivals == Arrivals(kind="closed", connections=4)


def test_an_unknown_scenario_is_named():
    with pytest.raises(ValueError, match="nothing"):
        workload_of(options("nothing"))


def test_every_combination_of_what_varies_is_a_setting():
    assert variants([]) == {"default": {}}
    assert variants(["max_batch_size=1,8", "discipline=edf"]) == {
        "max_batch_size=1 discipline=edf": {"max_batch_size": 1, "discipline": "edf"},
        "max_batch_size=8 discipline=edf": {"max_batch_size": 8, "discipline": "edf"},
    }


def test_settings_become_the_variables_of_the_section_that_has_them():
    found = variables(parse_settings("max_batch_size=4 admission=off hook_threads=2 fast_path=false"), ["a", "b"])
    models = json.loads(found.pop("SCHEDULER_MODELS"))
    assert found == {"SCHEDULER_ADMISSION": "off", "HOOK_THREADS": "2", "ENDPOINTS_FAST_PATH": "false"}
    assert {name: each.max_batch_size for name, each in SchedulerConfig(models=models).models.items()} == {
        "a": 4,
        "b": 4,
    }


@pytest.mark.parametrize("text", ["speed=3", "weight"])
def test_a_setting_that_does_not_exist_is_named(text):
    with pytest.raises(ValueError, match=text.split("=")[0]):
        variables(parse_settings(text), ["a"])


def test_inputs_are_made_to_what_the_metadata_says():
    declared = [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1]},
        {"name": "words", "datatype": "BYTES", "shape": [-1]},
        {"name": "half", "datatype": "BF16", "shape": [2]},
    ]
    found = random_inputs({"name": "m", "inputs": declared}, 4, {"x": (3, 5)})
    assert {name: (datatype, values.shape) for name, (datatype, values) in found.items()} == {
        "x": ("FP32", (4, 3, 5)),
        "words": ("BYTES", (4,)),
        "half": ("BF16", (2,)),
    }
    call = infer_call("m", {name: values for name, (_, values) in found.items()}, {"half": "BF16"})
    head = json.loads(call.body[: int(call.headers["Inference-Header-Content-Length"])])
    sizes = [each["parameters"]["binary_data_size"] for each in head["inputs"]]
    assert sizes == [4 * 3 * 5 * 4, 4 * (4 + len(b"a few words")), 4]
    assert [each["datatype"] for each in head["inputs"]] == ["FP32", "BYTES", "BF16"]
    with pytest.raises(ValueError, match="x"):
        random_inputs({"name": "m", "inputs": declared}, 4, {"x": (3,)})
    with pytest.raises(ValueError, match="nothing"):
        random_inputs({"name": "m", "inputs": declared}, 4, {"nothing": (3,)})
