"""The guard of the hot path: what it makes of counts, and that it counts what it says."""

import json
import shutil

import pytest

from load_tests.guard import __main__ as guard
from load_tests.guard.work import WORK

KNOWN = {"yardstick": 1000.0, "decode": 200.0, "encode": 100.0}


def test_counts_are_judged_relative_to_the_yardstick():
    assert guard.judge(KNOWN, {"yardstick": 1100.0, "decode": 220.0, "encode": 121.0}) == pytest.approx(
        {"decode": 1.0, "encode": 1.1}
    )


def test_more_and_fewer_instructions_beyond_the_margin_are_complained_of_and_so_is_what_was_not_counted():
    more, fewer = 1 + 2 * guard.MARGIN, 1 - 2 * guard.MARGIN
    within = 1 + guard.MARGIN / 2
    assert not guard.complaints(KNOWN, {"decode": within, "encode": 1 / within})
    assert len(guard.complaints(KNOWN, {"decode": more, "encode": fewer})) == 2
    assert guard.complaints(KNOWN, {"decode": 1.0}) == ["encode was not counted"]


def test_every_piece_of_work_can_be_done():
    for prepare in WORK.values():
        prepare(2)()


def test_a_python_of_which_nothing_is_on_record_is_skipped_with_the_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guard, "COUNTS", tmp_path / "counts.json")
    guard.COUNTS.write_text(json.dumps({"CPython 9.9 toaster": {}}))
    assert guard.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: nothing is on record of")


def test_where_counts_are_on_record_a_missing_valgrind_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guard, "COUNTS", tmp_path / "counts.json")
    guard.COUNTS.write_text(json.dumps({guard.key(): {"made with": guard.made_with(), "instructions": KNOWN}}))
    if compiler := shutil.which("cc"):  # which the key of compiled code names
        (tmp_path / "cc").symlink_to(compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert guard.main([]) == 1
    assert "apt-get install valgrind" in capsys.readouterr().out


def test_counts_of_every_piece_of_work_are_on_record():
    for counts in json.loads(guard.COUNTS.read_text()).values():
        assert counts["instructions"].keys() == WORK.keys()


@pytest.mark.clients
def test_the_same_work_takes_the_same_number_of_instructions():
    first, again = [guard.count(["yardstick", "encode"]) for _ in range(2)]
    assert again == pytest.approx(first, rel=0.005)
