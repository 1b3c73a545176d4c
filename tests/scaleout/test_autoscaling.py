"""How many replicas are wanted: a table."""

from types import SimpleNamespace

import pytest

from app.scaleout.autoscaling import BusyMeter, ByQueueDepth


@pytest.mark.parametrize(
    ("current", "queued", "busy", "wanted"),
    [
        (1, 8.0, 1.0, 1),  # as many as may queue
        (1, 8.1, 1.0, 2),
        (2, 40.0, 2.0, 5),
        (4, 0.0, 0.0, 1),  # idle
        (4, 0.0, 2.5, 4),  # nothing queues, and three would be too few
        (4, 0.0, 1.6, 2),
        (2, 0.0, 2.0, 2),  # busy without a queue is no reason for more
    ],
)
def test_wanted(current, queued, busy, wanted):
    assert ByQueueDepth(8).wanted(current, queued, busy) == wanted


def test_what_replicas_tell_is_added_up():
    told = {"queue_depth": {"a": 12.0, "b": 6.0}, "busy": {"a": 1.0, "b": 0.2}}
    assert ByQueueDepth(8)(SimpleNamespace(aggregated_metrics=told, target_num_replicas=1)) == (3, {})


@pytest.mark.parametrize("told", [None, {}, {"queue_depth": {}}])
def test_before_anything_is_told_nothing_changes(told):
    assert ByQueueDepth(8)(SimpleNamespace(aggregated_metrics=told, target_num_replicas=3)) == (3, {})


def test_a_device_is_busy_for_what_it_computed_since_the_last_look():
    meter = BusyMeter(100.0)
    assert meter.look(110.0, 4.0) == 0.4
    assert meter.look(112.0, 4.0) == 0.0
    assert meter.look(113.0, 5.5) == 1.0  # a long execution is booked when it ends
    assert meter.look(113.0, 6.0) == 0.0
