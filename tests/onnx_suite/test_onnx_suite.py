"""A part of the ONNX backend tests through a real server; `make onnx-suite` asks all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from load_tests.onnx_suite.__main__ import DATA, select
from load_tests.onnx_suite.cases import find_cases
from load_tests.onnx_suite.judging import Verdict
from load_tests.onnx_suite.plain import surroundings
from load_tests.onnx_suite.suite import run

ROOT = Path(__file__).parents[2]

#: Where the release that ships the tests was unpacked.
PACKAGE = ROOT / os.environ.get("ONNX_SUITE", DATA)

#: Of 1905, with all of those whose tensors are of the kinds that servers get wrong.
EVERY = 8


@pytest.mark.clients
def test_models_are_answered_as_expected_or_refused_for_a_reason_that_holds(tmp_path, monkeypatch):
    env = surroundings(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    report = run(select(find_cases(PACKAGE), EVERY), tmp_path, env)
    assert [(each.name, each.reason, each.detail) for each in report.failed] == []
    assert sum(each.verdict is Verdict.PASSED for each in report.outcomes) >= 250
    assert sum(report.merged.values()) >= 80


def test_without_the_models_the_command_says_how_to_get_them(tmp_path):
    command = [sys.executable, "-m", "load_tests", "onnx_suite", "--data", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "make onnx-suite" in ended.stdout
