"""The latest executions."""

import pytest

from app.domain.errors import ExecutionFailed
from app.runtime.recent import REMEMBERED, DispatchLog, RanDispatch


def test_an_execution_is_remembered_with_its_facts(stage):
    model_id = stage.load().model_id
    stage.answer(rows=3)
    stage.settle()
    [ran] = stage.dispatcher.log.latest()
    assert (ran.model_id, ran.variant, ran.size, ran.rows, ran.requests) == (model_id, "default", 4, 3, 1)
    assert ran.code is None
    assert ran.seconds == stage.dispatcher.log.busy_seconds > 0
    assert ran.waited >= 0 <= ran.gap


def test_a_failed_execution_is_remembered_by_its_code_and_the_device_was_busy(stage):
    stage.load()
    stage.backend.fail_next(ExecutionFailed("boom"))
    with pytest.raises(ExecutionFailed):
        stage.answer()
    stage.settle()
    [ran] = stage.dispatcher.log.latest()
    assert ran.code == "execution_failed"
    assert stage.dispatcher.log.busy_seconds > 0


def test_the_oldest_is_forgotten(stage):
    stage.load()
    log = stage.dispatcher.log
    for row in range(3):
        stage.answer(row)
    stage.settle()
    assert [len(log.latest(most)) for most in (1, 2, 3, 10)] == [1, 2, 3, 3]
    assert log.latest(1) == log.latest()[-1:]
    assert DispatchLog()._ran.maxlen == REMEMBERED
    assert isinstance(log.latest()[0], RanDispatch)
