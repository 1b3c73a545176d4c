"""Earliest deadline first, on snapshots."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from app.domain.config import SchedulerConfig
from app.scheduling.disciplines import DISCIPLINES, Candidate
from app.scheduling.disciplines.edf import select
from tests.scheduling.simulation import PATIENT

CONFIG = SchedulerConfig(discipline="edf")


def candidate(name, due, oldest=0.0):
    return Candidate(name, name, 0.5, 0.5, 0.01, False, oldest, due, 0.0)


def test_the_soonest_due_instant_wins_and_none_is_the_least_urgent():
    assert select([candidate("a", inf, oldest=0.0), candidate("b", 9.0, oldest=5.0)], CONFIG).name == "b"
    assert select([candidate("a", 8.0, oldest=5.0), candidate("b", 9.0, oldest=0.0)], CONFIG).name == "a"


def test_ties_go_to_the_oldest_front_and_then_to_the_name():
    assert select([candidate("a", 9.0, oldest=2.0), candidate("b", 9.0, oldest=1.0)], CONFIG).name == "b"
    assert select([candidate("b", 9.0), candidate("a", 9.0)], CONFIG).name == "a"


@PATIENT
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, unique_by=lambda pair: pair[0]),
    st.sampled_from([1.0, inf]),
)
def test_with_equal_deadlines_edf_is_exactly_fifo(models, due):
    candidates = [candidate(name, due, float(oldest)) for name, oldest in models]
    assert select(candidates, CONFIG) is DISCIPLINES["fifo"].select(candidates, CONFIG)


def test_edf_sheds_what_it_could_only_answer_late():
    assert DISCIPLINES["edf"].select is select
    assert DISCIPLINES["edf"].by_deadline
