"""First come, first served, on snapshots."""

from app.domain.config import SchedulerConfig
from app.scheduling.disciplines import DISCIPLINES, Candidate
from app.scheduling.disciplines.fifo import select

CONFIG = SchedulerConfig(discipline="fifo")


def candidate(name, oldest, share=0.5, due=float("inf")):
    return Candidate(name, name, share, 1.0 - share, 0.01, False, oldest, due, 0.0)


def test_the_oldest_front_wins_whatever_weights_and_deadlines_say():
    assert select([candidate("a", 2.0, share=0.99, due=1.0), candidate("b", 1.0, share=0.01)], CONFIG).name == "b"


def test_ties_go_to_the_name():
    assert select([candidate("b", 1.0), candidate("a", 1.0)], CONFIG).name == "a"


def test_fifo_is_in_the_table_and_never_sheds():
    assert DISCIPLINES["fifo"].select is select
    assert not DISCIPLINES["fifo"].by_deadline
