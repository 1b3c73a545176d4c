"""Arrivals on record, replayed under other rules."""

import json
from math import inf

import pytest

from load_tests.simulate.__main__ import main
from load_tests.simulate.record import read_record
from load_tests.simulate.rules import rule
from load_tests.simulate.run import answer


def served(name, costs, **changes):
    serving = {"costs": costs, "weight": 1.0, "weight_load_seconds": 0.0, "weight_loads": 1, "weight_bytes": 7}
    return {"name": name, "serving": {**serving, **changes}, "parts": []}


@pytest.fixture
def files(tmp_path):
    """Write a record and a status; their paths."""

    def write(lines, models, pool=0):
        record, status = tmp_path / "arrivals.jsonl", tmp_path / "status.json"
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
        status.write_text(json.dumps({"models": models, "weight_pool_bytes": pool}))
        return record, status

    return write


def line(time, model="m", rows=1, timeout=None, outcome="ok"):
    return {"time": 1e9 + time, "model": model, "rows": rows, "timeout": timeout, "outcome": outcome}


ONE = served("m", {"small": {"1": 0.5}, "default": {"10": 0.02, "1": 0.01, "2": 0.012}})


def test_arrivals_are_in_order_from_the_first_on_and_costs_are_those_that_were_learned(files):
    record = read_record(*files([line(3.0, timeout=0.5), line(1.0), line(2.0, rows=None)], [ONE]))
    assert [tuple(each) for each in record.arrivals] == [
        (0.0, "m", 1, inf), (1.0, "m", 1, inf), (2.0, "m", 1, 0.5)
    ]  # fmt: skip
    [model] = record.scenario.models
    assert model.sizes == (1, 2, 10)
    assert [model.seconds(size) for size in model.sizes] == [0.01, 0.012, 0.02]
    assert (record.scenario.seconds, record.scenario.rate) == (2.0, 1.5)
    assert record.outcomes == {"ok": 3}


def test_faster_than_it_came_keeps_deadlines_as_long_as_they_were(files):
    record = read_record(*files([line(0.0), line(4.0, timeout=0.5)], [ONE]))
    requests = record.requests(2.0)
    assert [(each.enqueued_at, each.deadline) for each in requests] == [(0.0, inf), (2.0, 2.5)]


def test_a_large_request_stands_in_pieces(files):
    record = read_record(*files([line(0.0, rows=23)], [ONE]))
    assert [each.rows for each in record.requests(1.0)] == [10, 10, 3]


def test_models_of_which_nothing_is_known_are_left_out_and_counted(files):
    lines = [line(0.0), line(1.0, "gone"), line(2.0, "meta"), line(3.0, "part")]
    meta = {**served("meta", {}), "parts": [served("part", {"default": {"1": 0.1}})]}
    record = read_record(*files(lines, [ONE, meta, {"name": "gone", "serving": None}]))
    assert record.left_out == {"gone": 1, "meta": 1}
    assert [model.name for model in record.scenario.models] == ["m", "part"]


def test_every_request_is_answered_by_a_device_that_has_time(files):
    lines = [line(float(second), rows=rows, timeout=0.1) for second, rows in enumerate((1, 2, 10))]
    record = read_record(*files(lines, [ONE]))
    found = answer(record.scenario, rule("edf"), record.requests(1.0))
    assert (found.arrived, found.in_time) == (3, 3)
    assert sorted(found.models[0].latencies) == pytest.approx([0.01, 0.012, 0.02])


def test_rules_are_set_against_each_other(files, capsys):
    lines = [line(second / 50, timeout=0.03, outcome="deadline_exceeded") for second in range(200)]
    record, status = files(lines, [served("m", {"default": {"1": 0.012}})])
    told = ["--replay", str(record), "--status", str(status), "--rule", "fair", "--rule", "edf", "--loads", "1,4"]
    assert main(told) == 0
    printed = capsys.readouterr().out
    assert "200 requests on record in 3.98 s; on the server: 200 deadline_exceeded" in printed
    assert printed.count("as fast as they came") == 2


def test_nothing_to_replay_is_said(files, capsys, tmp_path):
    record, status = files([line(0.0, "other")], [ONE])
    assert main(["--replay", str(record), "--status", str(status)]) == 2
    assert "nothing to replay" in capsys.readouterr().err
    assert main(["--replay", str(tmp_path / "absent"), "--status", str(status)]) == 2
    with pytest.raises(SystemExit):
        main(["--replay", str(record)])
