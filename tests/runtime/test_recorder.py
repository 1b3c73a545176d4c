"""Arrivals on their way to a file."""

import json

import pytest

from app.runtime import recorder as module
from app.runtime.recorder import Arrival, Recorder


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path / "records")
    yield made
    made.stop()


def arrival(number=1.0):
    return Arrival(number, "m", 2, None, "ok")


def lines(recorder):
    return [json.loads(line) for line in recorder.path.read_text().splitlines()]


def test_what_arrived_is_there_in_order_when_the_recorder_has_stopped(recorder):
    recorder.start()
    for number in range(100):
        recorder.add(arrival(float(number)))
    recorder.stop()
    assert [line["time"] for line in lines(recorder)] == [float(number) for number in range(100)]
    assert lines(recorder)[0] == {"time": 0.0, "model": "m", "rows": 2, "timeout": None, "outcome": "ok"}


def test_every_start_has_a_file_of_its_own(tmp_path):
    assert Recorder(tmp_path).path != Recorder(tmp_path).path


def test_what_a_slow_disk_cannot_take_is_counted(recorder, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    for _ in range(5):
        recorder.add(arrival())
    assert recorder.lost == 3


def test_a_directory_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Recorder(tmp_path / "file").start()


def test_a_disk_that_fails_later_is_said_and_ends_nothing(recorder, caplog):
    recorder.start()
    recorder.path.unlink()
    recorder.path.mkdir()
    recorder.add(arrival())
    recorder.stop()
    assert "arrivals are not recorded" in caplog.text


def test_a_recorder_that_never_started_stops(recorder):
    recorder.stop()
    assert recorder.path.read_text() == ""
