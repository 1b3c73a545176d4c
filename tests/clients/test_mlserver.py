"""`mlserver infer` sends files of requests, one by one or merged into micro-batches, and each line gets its answer."""

import json
import subprocess

import pytest

from tests.clients.conftest import environment

pytestmark = pytest.mark.clients

#: Rows that differ from line to line, several to a line: what is merged and cut must not be mixed up.
LINES = [
    (f"line-{start}", [[float(row), -0.5, 1e30] for row in range(start, start + 1 + start % 3)]) for start in range(9)
]


def request_line(model, datatype, request_id, rows):
    flat = [value for row in rows for value in row]
    tensor = {"name": datatype, "datatype": datatype, "shape": [len(rows), len(rows[0])], "data": flat}
    return json.dumps({"id": request_id, "inputs": [tensor]})


def infer(server, folder, model, lines, *options):
    """The answers to these lines, in their order."""
    (folder / "requests").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        environment("mlserver") / "bin" / "mlserver", "infer", "--url", server.address, "--model-name", model,
        "--input-data-path", folder / "requests", "--output-data-path", folder / "answers", "--retries", "1", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (folder / "answers").read_text(encoding="utf-8").splitlines()]
    return sorted(answers, key=lambda answer: answer["parameters"]["batch_index"])


@pytest.mark.parametrize("form", [(), ("--binary-data",)], ids=["JSON", "binary"])
@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (2, 3), (8, 1)])
def test_every_line_gets_its_own_rows_back(server, tmp_path, form, batch_size, workers):
    lines = [request_line("floats", "FP32", request_id, rows) for request_id, rows in LINES]
    options = ("--batch-size", str(batch_size), "--workers", str(workers), *form)
    answers = infer(server, tmp_path, "floats", lines, *options)
    assert [answer["id"] for answer in answers] == [request_id for request_id, _ in LINES]
    for answer, (_, rows) in zip(answers, LINES, strict=True):
        (output,) = answer["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("FP32_out", "FP32", [len(rows), 3])
        assert output["data"] == pytest.approx([value for row in rows for value in row], rel=1e-6)


def test_text_is_answered(server, tmp_path):
    lines = [request_line("text", "BYTES", "t", [["", "a b"], ["é", "c"]])]
    (answer,) = infer(server, tmp_path, "text", lines)
    assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([2, 2], ["", "a b", "é", "c"])


def test_an_error_is_told_in_the_servers_words_and_the_other_lines_are_answered(server, tmp_path):
    lines = [request_line("floats", "FP32", "good", [[1.0]]), request_line("floats", "INT64", "bad", [[1]])]
    good, bad = infer(server, tmp_path, "floats", lines)
    assert good["outputs"][0]["data"] == [1.0]
    assert "'INT64'" in bad["error"]["msg"]
