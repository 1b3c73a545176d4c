"""What is counted, and what is reported of it."""

import dataclasses

import pytest

from app.domain.config import ModelPolicy
from app.domain.errors import QueueFull
from app.scheduling.stats import DROP_REASONS, ModelStats, WaitHistogram, quantile
from tests.builders import request, spec
from tests.scheduling.simulation import burst, push, scheduler, seed


def test_quantiles_are_samples():
    assert quantile([], 0.5) == 0.0
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile(range(1, 101), 1.0) == 100


def test_waits_are_kept_for_the_latest_requests_only():
    waits = WaitHistogram()
    waits.extend([9.0] * 600)
    waits.extend([1.0] * WaitHistogram.WINDOW)
    assert set(waits.snapshot()) == {1.0}


def test_a_new_model_is_reported_at_zero():
    stats = scheduler("m").stats(0.0)
    model = stats.models["m"]
    assert (model.name, model.dispatches, model.requests, model.rows, model.padded_rows) == ("m", 0, 0, 0, 0)
    assert model.drops == dict.fromkeys(DROP_REASONS, 0)
    assert (model.waits, model.share_target, model.share_actual) == ((), 0.0, 0.0)
    assert stats.discipline == "fair"


def test_dispatches_are_counted_when_they_have_run():
    made = scheduler("m")
    push(made, *burst(3, rows=1))
    seed(made, "m", {1: 9.0, 2: 9.0, 4: 1.0})
    dispatch = made.next_decision(2.0).dispatch
    assert made.stats(2.0).models["m"].dispatches == 0
    made.record(dispatch, 0.25, 2.25)
    model = made.stats(2.25).models["m"]
    assert (model.dispatches, model.requests, model.rows, model.padded_rows) == (1, 3, 3, 1)
    assert model.compute_seconds == 0.25
    assert model.batch_rows == {3: 1}
    assert model.batch_sizes == {4: 1}
    assert model.costs["default", 4] == pytest.approx(0.2 * 0.25 + 0.8 * 1.0)
    assert model.waits == (2.0, 2.0, 2.0)


def test_exact_row_counts_are_counted_by_size_class():
    made = scheduler(spec("m", sizes=()))
    for rows in (5, 7, 9):
        push(made, request(rows=rows))
        made.record(made.next_decision(0.0).dispatch, 1.0, 0.0)
    model = made.stats(0.0).models["m"]
    assert model.batch_rows == model.batch_sizes == {8: 2, 16: 1}
    assert set(model.costs) == {("default", 8), ("default", 16)}
    assert (model.rows, model.padded_rows) == (21, 0)


def test_waits_end_when_the_dispatch_begins():
    made = scheduler("m", discipline="fifo")
    push(made, *[request(enqueued_at=float(second)) for second in range(4)], now=3.0)
    made.record(made.next_decision(4.0).dispatch, 50.0, 54.0)
    model = made.stats(54.0).models["m"]
    assert sorted(model.waits) == [1.0, 2.0, 3.0, 4.0]


def test_shares_are_over_the_models_in_use():
    made = scheduler("a", "b", "idle", policies={"a": ModelPolicy(weight=3.0), "idle": ModelPolicy(weight=100.0)})
    push(made, request("a"), request("b"), request("b"))
    for _ in range(2):
        dispatch = made.next_decision(0.0).dispatch
        made.record(dispatch, {"a": 4.0, "b": 1.0}[dispatch.model_id], 0.0)
    models = made.stats(0.0).models
    assert [models[name].share_target for name in ("a", "b", "idle")] == [0.75, 0.25, 0.0]
    assert [models[name].share_actual for name in ("a", "b", "idle")] == pytest.approx([0.8, 0.2, 0.0])
    assert models["a"].recent_seconds == pytest.approx(4.0)
    assert made.stats(30.0).models["a"].recent_seconds == pytest.approx(2.0)


def test_what_a_woken_model_may_not_claim_is_not_reported_as_used():
    made = scheduler("busy", "woken")
    push(made, *burst(20, "busy"))
    made.record(made.next_decision(0.0).dispatch, 10.0, 10.0)
    push(made, *burst(20, "woken"))
    made.next_decision(10.0)
    assert made.stats(10.0).models["woken"].recent_seconds == 0.0


@pytest.mark.parametrize(
    ("model", "policy", "effective"),
    [
        (spec("m"), ModelPolicy(), 4),
        (spec("m"), ModelPolicy(max_batch_size=3), 3),
        (spec("m", max_batch_size=2), ModelPolicy(max_batch_size=3), 2),
        (spec("m"), ModelPolicy(max_batch_size=9), 4),
        (spec("m", batching=False), ModelPolicy(), None),
    ],
)
def test_the_effective_max_batch_is_reported(model, policy, effective):
    assert scheduler(model, policies={"m": policy}).stats(0.0).models["m"].max_batch_size == effective


def test_a_snapshot_does_not_change_with_the_scheduler():
    made = scheduler("m", max_queue_depth=1)
    push(made, request())
    before = made.stats(0.0)
    copy = dataclasses.asdict(before.models["m"])
    with pytest.raises(QueueFull):
        push(made, request())
    made.record(made.next_decision(0.0).dispatch, 1.0, 1.0)
    assert dataclasses.asdict(before.models["m"]) == copy


def test_a_reload_goes_on_with_counters_use_and_costs_of_the_old_generation():
    made = scheduler("m", discipline="fifo")
    push(made, request(), *burst(3))
    made.record(made.next_decision(0.0).dispatch, 0.5, 0.5)
    push(made, *burst(2))
    made.add_model("m2", spec("m"), ModelPolicy())
    made.seed_cost("m2", "default", 1, 0.125, 0.5)
    made.carry_over("m", "m2")
    made.enqueue([request("m2")], 0.5)
    stats = made.stats(0.5)
    assert list(stats.models) == ["m2"]
    assert stats.models["m2"].queue_depth == 3
    assert stats.models["m2"].dispatches == 1
    assert stats.models["m2"].recent_seconds == 0.5
    assert stats.models["m2"].costs == {("default", 4): 0.5, ("default", 1): 0.125}
    old = made.next_decision(0.5).dispatch
    assert old.model_id == "m"
    made.record(old, 0.5, 1.0)
    assert made.remove_model("m") == ()
    assert made.stats(1.0).models["m2"].dispatches == 2
    assert made.stats(1.0).models["m2"].recent_seconds == pytest.approx(1.0, rel=0.02)


def test_a_removed_model_leaves_the_statistics_and_its_use_behind():
    made = scheduler("m", "n")
    push(made, request())
    made.record(made.next_decision(0.0).dispatch, 0.5, 0.5)
    made.remove_model("m")
    assert list(made.stats(0.5).models) == ["n"]
    made.add_model("m", spec("m"), ModelPolicy())
    assert made.stats(0.5).models["m"].recent_seconds == 0.0
    assert made.stats(0.5).models["m"].costs == {}


def test_models_that_are_told_one_by_one_are_those_that_are_told_together():
    made = scheduler("a", "b", "old", "new")
    push(made, *burst(3, "a"), request("old"))
    made.record(made.next_decision(0.0).dispatch, 1.0, 0.0)
    made.carry_over("old", "new")
    overview = made.report.overview(1.0)
    assert dict(overview.models) == {}
    told: dict[str, ModelStats] = {}
    for model_id in ("a", "b", "old", "new", "unknown"):
        told |= made.report.sample([model_id], overview.usage)
    together = made.stats(1.0)
    assert told == dict(together.models)
    assert set(told) == {"a", "b", "new"}
    assert dataclasses.replace(together, models={}) == overview
