"""The KServe SDK's REST client reads every answer as it was meant."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import environment

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).parent / "kserve" / "ask.py"

ROWS = {
    "FP32": [0.10000000149011612, -2.5, 3.3999999521443642e38],
    "INT64": [2**63 - 1, -(2**63), 0],
    "BOOL": [True, False, True],
    "FP16": [65504.0, -1.5, 2.0**-24],
    "BYTES": ["", "é", "a\0b"],
}


@pytest.fixture(scope="module")
def answers(server):
    command = [environment("kserve") / "bin" / "python", SCRIPT, server.url]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout.splitlines()[-1])


def same_rows(answer, *datatypes, rows=1):
    outputs = {f"{each}_out": {"datatype": each, "shape": [rows, 3], "data": [ROWS[each]] * rows} for each in datatypes}
    assert answer["outputs"] == outputs


def test_health_is_told(answers):
    health = {name: answers[name] for name in ("live", "ready", "model ready", "absent model ready")}
    assert health == {"live": True, "ready": True, "model ready": True, "absent model ready": False}


@pytest.mark.parametrize("form", ["binary", "JSON"])
def test_several_tensors_come_back_exactly(answers, form):
    same_rows(answers[form], "FP32", "INT64", "BOOL")
    assert answers[form]["model"] == "several"


def test_ids_are_echoed(answers):
    assert answers["binary"]["id"] == "mine"
    assert len(answers["JSON"]["id"]) > 20  # of the client's making


def test_half_precision_goes_in_binary(answers):
    same_rows(answers["binary half"], "FP16")


@pytest.mark.parametrize("form", ["binary", "JSON"])
def test_text_comes_back_exactly(answers, form):
    same_rows(answers[f"{form} text"], "BYTES")


def test_a_request_above_the_largest_size_is_cut_and_joined(answers):
    same_rows(answers["many rows"], "FP32", "INT64", "BOOL", rows=11)


def test_a_binary_answer_may_be_asked_for_by_output(answers):
    same_rows(answers["binary answer"], "FP32")


def test_plain_dictionaries_may_nest_their_data(answers):
    assert answers["nested"]["outputs"] == answers["flat"]["outputs"]
    assert answers["flat"]["outputs"]["FP32_out"]["data"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("absent model", 404, "unknown model 'absent'"),
        ("missing input", 400, "INT64"),
        ("wrong input", 400, "'FP32'"),
        ("wrongly nested", 400, "'FP32'"),
    ],
)
def test_the_client_tells_the_servers_words_about_an_error(answers, name, status, words):
    assert answers[name]["status"] == status
    said = answers[name]["error"].partition(", '4")[0]
    assert words in said
