"""When the server says that it is ready."""

import pytest

from app.engine.readiness import Readiness
from app.runtime.registry import ModelEntry, ModelState


def entries(**states):
    return {name: ModelEntry(name, ModelState(state)) for name, state in states.items()}


def test_it_is_not_ready_before_the_models_of_the_start_are_known():
    assert not Readiness(()).ready({}, alive=True)


def test_it_is_ready_at_once_without_models():
    readiness = Readiness(())
    readiness.expect([])
    assert readiness.ready({}, alive=True)


@pytest.mark.parametrize(
    ("states", "ready"),
    [
        ({"a": "LOADING", "b": "READY"}, False),
        ({"a": "READY", "b": "READY"}, True),
        ({"a": "UNAVAILABLE", "b": "READY"}, True),  # one bad bundle
        ({"a": "UNAVAILABLE", "b": "UNAVAILABLE"}, True),
        ({"b": "READY"}, True),  # one is gone again
        ({"a": "READY", "b": "READY", "late": "LOADING"}, True),
    ],
)
def test_it_is_ready_when_no_model_of_the_start_is_loading(states, ready):
    readiness = Readiness(())
    readiness.expect(["a", "b"])
    assert readiness.ready(entries(**states), alive=True) is ready


@pytest.mark.parametrize(
    ("states", "ready"),
    [
        ({"a": "READY"}, False),
        ({"a": "READY", "must": "LOADING"}, False),
        ({"a": "READY", "must": "UNAVAILABLE"}, False),
        ({"a": "UNAVAILABLE", "must": "READY"}, True),
    ],
)
def test_required_models_must_serve(states, ready):
    readiness = Readiness(["must"])
    readiness.expect(["a"])
    assert readiness.ready(entries(**states), alive=True) is ready


def test_once_ready_no_model_withdraws_it():
    readiness = Readiness(["must"])
    readiness.expect(["must"])
    assert readiness.ready(entries(must="READY"), alive=True)
    assert readiness.ready(entries(must="UNAVAILABLE"), alive=True)
    assert readiness.ready(entries(must="LOADING"), alive=True)
    assert readiness.ready({}, alive=True)


def test_draining_and_a_dead_dispatcher_withdraw_it():
    readiness = Readiness(())
    readiness.expect([])
    assert not readiness.ready({}, alive=False)
    assert readiness.ready({}, alive=True)
    readiness.draining = True
    assert not readiness.ready({}, alive=True)
