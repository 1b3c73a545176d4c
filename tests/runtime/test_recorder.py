"""Arrivals on their way to a file."""

import json

import pytest

from app.runtime import recorder as module
from app.runtime.recorder import Arrival, Recorder

MAX_BYTES = 1 << 20


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path / "records", MAX_BYTES)
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
    assert Recorder(tmp_path, MAX_BYTES).path != Recorder(tmp_path, MAX_BYTES).path


def test_what_a_slow_disk_cannot_take_is_counted(recorder, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    for _ in range(5):
        recorder.add(arrival())
    assert recorder.lost == 3


def test_a_directory_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Recorder(tmp_path / "file", MAX_BYTES).start()


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


def files(directory):
    return sorted(directory.glob("arrivals-*.jsonl"))


def test_a_full_file_is_followed_by_another_and_the_oldest_go(tmp_path, monkeypatch):
    """Also those of earlier starts; what is nobody's arrivals stays."""
    monkeypatch.setattr(module, "AT_ONCE", 10)
    old, other = tmp_path / "arrivals-20200101T000000.000000.jsonl", tmp_path / "recent-8000.json"
    old.write_text("x" * 5000)
    other.write_text("{}")
    recorder = Recorder(tmp_path, 16_000)  # 2 kB a file
    assert old.exists()
    recorder.start()
    for number in range(1000):
        recorder.add(arrival(float(number)))
    recorder.stop()
    assert recorder.lost == 0
    assert not old.exists()
    assert other.exists()
    kept = [json.loads(line)["time"] for file in files(tmp_path) for line in file.read_text().splitlines()]
    assert kept == [float(number) for number in range(1000)][-len(kept) :]
    assert len(files(tmp_path)) > 4
    assert 8_000 < sum(file.stat().st_size for file in files(tmp_path)) < 20_000
    assert all(file.stat().st_mode & 0o077 == 0 for file in files(tmp_path))


def test_a_start_makes_room_too(tmp_path):
    for year in range(2000, 2020):
        (tmp_path / f"arrivals-{year}0101T000000.000000.jsonl").write_text("x" * 1000)
    Recorder(tmp_path, 8_000)
    assert [file.name[9:13] for file in files(tmp_path)[:-1]] == [str(year) for year in range(2013, 2020)]
