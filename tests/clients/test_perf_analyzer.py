"""Triton's perf_analyzer measures this server as it would Triton, the statistics extension included."""

import csv
import re
import subprocess

import pytest

from tests.clients.conftest import environment

pytestmark = pytest.mark.clients


def command():
    """The program; through the unpacked libraries of a newer Debian where this machine's are too old for it."""
    folder = environment("perf_analyzer")
    program, libraries = folder / "wheel" / "perf_analyzer" / "bin" / "perf_analyzer", folder / "libraries" / "usr"
    loader = [libraries / "lib64" / "ld-linux-x86-64.so.2", "--library-path", libraries / "lib" / "x86_64-linux-gnu"]
    reason = ""
    for way in ([program], [*loader, program]):
        try:
            tried = subprocess.run([*way, "--version"], capture_output=True, text=True, timeout=60)
        except OSError as error:
            reason += f"{error}\n"
            continue
        if tried.returncode == 0:
            return way
        reason += tried.stderr
    pytest.skip(f"perf_analyzer does not run on this machine: {reason}")


@pytest.fixture(scope="module")
def perf_analyzer():
    return command()


def measure(perf_analyzer, server, folder, *options):
    """What it measured, a row for each load."""
    table = folder / "measured.csv"
    asked = [*perf_analyzer, "-u", server.address, "-f", table, "--verbose-csv", *options]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fail" not in (done.stdout + done.stderr).lower()
    with table.open() as file:
        return list(csv.DictReader(file)), done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("-m", "floats", "--shape", "FP32:3", "-b", "2"),
        ("-m", "several", "--shape", "FP32:3", "--shape", "INT64:3", "--shape", "BOOL:3"),
        ("-m", "half", "--shape", "FP16:5", "-b", "4", "--async"),
        ("-m", "text", "--shape", "BYTES:2", "--string-length", "20"),
        ("-m", "floats", "--shape", "FP32:3", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    ],
    ids=["batches", "several tensors", "half", "text", "JSON"],
)
def test_a_fixed_number_of_requests_is_measured_and_the_servers_statistics_agree(
    perf_analyzer, server, tmp_path, options
):
    measured, said = measure(
        perf_analyzer, server, tmp_path, "--request-count", "100", "--concurrency-range", "4", *options
    )
    rows = int(options[options.index("-b") + 1]) if "-b" in options else 1
    answered = max(map(int, re.findall(r"Successful request count: (\d+)", said)))
    inferred = max(map(int, re.findall(r"Inference count: (\d+)", said)))
    # It sends while it takes the statistics, at both ends: the more, the longer that takes.
    assert answered == pytest.approx(100, abs=40)
    assert inferred == pytest.approx(100 * rows, abs=40 * rows)
    (row,) = measured
    assert float(row["Inferences/Second"]) > 0
    for stage in ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output"):
        assert float(row[stage]) >= 0


def test_windows_of_several_loads_become_steady_enough_to_measure(perf_analyzer, server, tmp_path):
    options = ("--measurement-mode", "count_windows", "--measurement-request-count", "50", "-s", "999")
    measured, _ = measure(
        perf_analyzer, server, tmp_path, "-m", "floats", "--shape", "FP32:3", "--concurrency-range", "1:5:2", *options
    )
    assert [row["Concurrency"] for row in measured] == ["1", "3", "5"]


def test_a_model_that_is_not_there_is_reported_in_the_servers_words(perf_analyzer, server, tmp_path):
    asked = [*perf_analyzer, "-u", server.address, "-m", "absent", "--request-count", "1"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode != 0
    assert "unknown model 'absent'" in done.stdout + done.stderr
