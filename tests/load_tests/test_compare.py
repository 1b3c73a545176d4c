"""`run` against a real server, and `compare`: which results are set against each other, and what is worse."""

import json

import pytest

from load_tests.compare import main as compare
from load_tests.models import mlp, write_bundle
from load_tests.processes import inference_server
from load_tests.run import main as run

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Results of two settings of a real server, measured for a moment."""
    folder = tmp_path_factory.mktemp("results")
    quick = ["--seconds", "1", "--warmup-seconds", "0", "--rounds", "2", "--connections", "4", "--processes", "2"]
    assert run(["digits", *quick, "--vary", "max_batch_size=1,32", "--loop", "--out", str(folder)]) == 0
    return folder / "run_digits.json"


def changed(path, target, change):
    content = json.loads(path.read_text())
    change(content)
    target.write_text(json.dumps(content))
    return str(target)


def test_a_run_writes_what_it_saw_of_every_setting(measured):
    content = json.loads(measured.read_text())
    assert [variant["label"] for variant in content["variants"]] == ["max_batch_size=1", "max_batch_size=32"]
    single, batched = content["variants"]
    for variant in content["variants"]:
        assert len(variant["runs"]) == 2
        for seen in variant["runs"]:
            assert seen["ok"] == seen["due"] > 0
            assert seen["latency_ms"]["p50"] <= seen["latency_ms"]["p99"]
            assert sum(int(size) * times for size, times in seen["batch_sizes"]["digits"].items()) >= seen["ok"]
            assert seen["stages_ms"]["queue"]["p50"] >= 0
            assert seen["client"]["processes"] == 2
            assert 0 < seen["device_busy"] < 1
            assert seen["server_cpu_us"] > 0
            assert seen["pss_max"] <= seen["rss_max"]
    assert set(single["runs"][0]["batch_sizes"]["digits"]) == {"1"}
    digests = [variant["models"]["digits"] for variant in (single, batched)]
    assert digests[0]["digest"] == digests[1]["digest"] != ""
    assert digests[0]["policy_digest"] != digests[1]["policy_digest"]
    assert set(content["loop"][0]) == {"1", "2", "4", "8", "16", "32"}
    assert measured.with_suffix(".png").read_bytes().startswith(PNG)


def test_results_are_no_worse_than_themselves(measured, capsys):
    assert compare([str(measured), str(measured)]) == 0
    assert "no worse" in capsys.readouterr().out


def _slower(content):
    for seen in content["variants"][1]["runs"]:
        seen["latency_ms"]["p99"] *= 1.5


def _missing(content):
    for seen in content["variants"][0]["runs"]:
        seen["miss_rate"] = 0.02


def _failing(content):
    for seen in content["variants"][0]["runs"]:
        seen["error_rate"] = 0.001


def _fewer(content):
    for seen in content["variants"][0]["runs"]:
        seen["requests_per_s"] *= 0.8


@pytest.mark.parametrize(
    ("change", "figure", "tolerance"),
    [
        (_slower, "p99", ["--p99", "0.6"]),
        (_missing, "missed", ["--misses", "0.03"]),
        (_failing, "errors", ["--errors", "0.01"]),
        (_fewer, "requests/s", ["--rate", "0.3"]),
    ],
)
def test_what_is_worse_beyond_its_tolerance_is_named(measured, tmp_path, capsys, change, figure, tolerance):
    worse = changed(measured, tmp_path / "worse.json", change)
    assert compare([str(measured), worse]) == 1
    assert figure in capsys.readouterr().out.splitlines()[-1]
    assert compare([str(measured), worse, *tolerance]) == 0
    assert compare([worse, str(measured)]) == 0  # the other way it is better


def _model(content):
    content["variants"][0]["models"]["digits"]["digest"] = "another"


def _policy(content):
    content["variants"][0]["models"]["digits"]["policy_digest"] = "another"


def _unknown(content):
    for variant in content["variants"]:
        variant["models"]["digits"]["digest"] = ""


def _asked(content):
    content["workload"]["arrivals"]["connections"] = 64


@pytest.mark.parametrize(
    ("change", "kind"), [(_model, "model"), (_policy, "policy"), (_unknown, "model"), (_asked, "workload")]
)
def test_what_was_not_measured_alike_is_refused_unless_it_may_differ(measured, tmp_path, capsys, change, kind):
    other = changed(measured, tmp_path / "other.json", change)
    assert compare([str(measured), other]) == 2
    assert f"--allow-different {kind}" in capsys.readouterr().err
    assert compare([str(measured), other, "--allow-different", kind]) == 0


@pytest.mark.parametrize("text", ["", "{}", '{"format": 0}', "[]"])
def test_what_is_no_result_is_named(measured, tmp_path, capsys, text):
    path = tmp_path / "none.json"
    path.write_text(text)
    assert compare([str(measured), str(path)]) == 2
    assert "none.json" in capsys.readouterr().err
    assert compare([str(measured), str(tmp_path / "absent.json")]) == 2


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["digits", "--vary", "speed=1"], ["mixed", "--loop"], ["--url", "http://h", "--loop"]]
)
def test_what_cannot_be_run_is_refused_before_anything_starts(arguments, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("run: ")


def test_a_server_that_runs_already_and_wants_a_token_is_measured_too(tmp_path):
    bundle = write_bundle(tmp_path / "bundles", "digits", mlp((8, 4))).parent
    quick = ["--seconds", "1", "--warmup-seconds", "0", "--rounds", "1", "--rate", "50", "--out", str(tmp_path)]
    with inference_server(bundle.parent, CACHE_DIR=str(tmp_path / "cache"), ENDPOINTS_API_TOKEN="secret") as server:
        assert run(["digits", "--url", server.url, "--token", "secret", *quick]) == 0
        assert run(["digits", "--url", server.url, *quick]) == 2
    [variant] = json.loads((tmp_path / "run_digits.json").read_text())["variants"]
    [seen] = variant["runs"]
    assert seen["ok"] == seen["due"] > 0
    assert seen["device_busy"] > 0
    assert (seen["server_cpu_us"], seen["rss_max"]) == (None, None)
