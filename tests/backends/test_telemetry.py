"""ONNX Runtime tells its maker nothing of what is served here."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["app.backends.onnxruntime", "app.backends.compile_child"])
def test_no_report_is_prepared_when_it_is_imported(tmp_path, module):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    env.pop("ORT_DISABLE_TELEMETRY", None)
    code = f"import os, {module}; assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert list(tmp_path.iterdir()) == []


def test_whoever_wants_the_reports_may_have_them():
    code = "import os, app.backends; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "ORT_DISABLE_TELEMETRY": "0"}, check=True)
