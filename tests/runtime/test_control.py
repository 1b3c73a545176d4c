"""Loads, reloads, unloads, renames and policies, with the real threads on a fake device."""

import concurrent.futures
import os
import threading

import pytest

from app.domain.batch_safety import BatchProbe, Beside, Deviation
from app.domain.config import ModelPolicy
from app.domain.errors import BundleError, ExecutionFailed, ModelNotFound, ModelUnavailable, ShuttingDown
from tests.builders import write_identity_bundle
from tests.substitutes import Over


def ended(future):
    """How a future ended: its exception, or None."""
    return future.exception(30)


# load


def test_a_model_is_loading_until_it_is_ready(stage):
    path = write_identity_bundle(stage.root)
    hold = stage.hold_compile()
    load = stage.control.load_model("m", path)
    hold.wait_entered()
    assert stage.states() == {"m": ("LOADING", "")}
    assert not stage.control.serves("m")
    with pytest.raises(ModelUnavailable, match="'m' is LOADING"):
        stage.registry.resolve("m")
    hold.open()
    assert ended(load) is None
    assert stage.states() == {"m": ("READY", "")}
    assert stage.control.serves("m")
    assert stage.answer(7) == [7]


def test_a_load_runs_every_size_before_the_first_request_and_seeds_the_costs(stage):
    stage.backend.cost = lambda variant, size: 10.0 * size
    stage.control.load_model("m", write_identity_bundle(stage.root, sizes=(1, 2, 4))).result(30)
    assert [call.size for call in stage.backend.calls] == [1, 1, 2, 2, 4, 4]
    costs = stage.stats().costs
    assert {size: round(seconds) for (_, size), seconds in costs.items()} == {1: 10, 2: 20, 4: 40}


def test_a_load_spares_others_a_second_run_of_what_the_compile_child_has_measured(stage):
    stage.backend.cost = lambda variant, size: 10.0 * size
    stage.backend.warm_costs["m"] = {("default", 1): 11.0, ("default", 2): 19.0}
    stage.control.load_model("m", write_identity_bundle(stage.root, sizes=(1, 2, 4))).result(30)
    assert [call.size for call in stage.backend.calls] == [1, 2, 2, 4, 4]


def test_requests_are_served_between_the_probes_of_a_load(stage):
    stage.load("busy")
    hold = stage.hold_run()
    load = stage.control.load_model("m", write_identity_bundle(stage.root))
    hold.wait_entered()
    request = stage.ask(3, name="busy")
    hold.open()
    assert request.result(30).outputs["y"][0, 0] == 3
    assert ended(load) is None


def test_a_request_waits_for_one_probe_of_a_load_and_not_for_the_next(stage, monkeypatch):
    stage.load("busy")
    stage.backend.calls.clear()
    hold, call, next_probe = stage.hold_run(), stage.dispatcher.call, threading.Event()

    def spy(*args, **options):
        future = call(*args, **options)
        next_probe.set()
        return future

    load = stage.control.load_model("m", write_identity_bundle(stage.root))
    hold.wait_entered()
    request = stage.ask(3, name="busy")
    call(lambda: next_probe.wait(30))
    monkeypatch.setattr(stage.control, "_dispatcher", Over(stage.dispatcher, call=spy))
    hold.open()
    assert request.result(30).outputs["y"][0, 0] == 3
    assert ended(load) is None
    assert [each.model for each in stage.backend.calls][:3] == ["m", "busy", "m"]


def test_a_bundle_that_cannot_be_read_is_unavailable_and_says_why(stage):
    stage.load("other")
    path = write_identity_bundle(stage.root, manifest="wieght: 1\n")
    assert isinstance(ended(stage.control.load_model("m", path)), BundleError)
    state, reason = stage.states()["m"]
    assert state == "UNAVAILABLE"
    assert f"{path / 'manifest.yaml'}: " in reason
    assert "wieght" in reason
    assert stage.answer(1, name="other") == [1]
    assert [model.spec.name for model in stage.backend.loaded] == ["other"]


@pytest.mark.parametrize("step", ["on_compile", "on_prepare"])
def test_an_unexpected_failure_of_a_load_is_told_and_leaves_nothing_behind(stage, step):
    def fail(*_):
        raise RuntimeError("no room")

    setattr(stage.backend, step, fail)
    assert isinstance(ended(stage.control.load_model("m", write_identity_bundle(stage.root))), RuntimeError)
    assert stage.states() == {"m": ("UNAVAILABLE", "RuntimeError: no room")}
    assert stage.backend.loaded == []
    assert stage.weights.snapshot().models == {}
    setattr(stage.backend, step, None)
    assert ended(stage.control.load_model("m", stage.root / "m")) is None
    assert stage.states() == {"m": ("READY", "")}


def test_a_later_load_of_the_same_name_wins(stage):
    path = write_identity_bundle(stage.root)
    hold = stage.hold_compile()
    first = stage.control.load_model("m", path)
    hold.wait_entered()
    second = stage.control.load_model("m", path)
    hold.open()
    assert isinstance(ended(first), ModelUnavailable)
    assert "overtaken" in str(ended(first))
    assert ended(second) is None
    assert stage.states() == {"m": ("READY", "")}
    assert len(stage.backend.loaded) == 1


def test_a_failed_load_that_was_overtaken_changes_no_state(stage):
    path = write_identity_bundle(stage.root)
    hold = stage.hold_compile()

    def fail(*_):
        stage.backend.on_prepare = None
        raise ExecutionFailed("boom")

    stage.backend.on_prepare = fail
    first, second = stage.control.load_model("m", path), stage.control.load_model("m", path)
    hold.wait_entered()
    second_hold = stage.hold_compile()
    hold.open()
    assert isinstance(ended(first), ExecutionFailed)
    assert stage.states() == {"m": ("LOADING", "")}
    second_hold.open()
    assert ended(second) is None


# reload


def test_the_old_version_serves_while_the_new_one_loads(stage):
    old = stage.load()
    hold = stage.hold_compile()
    load = stage.control.load_model("m", stage.root / "m")
    hold.wait_entered()
    assert stage.states() == {"m": ("READY", "")}
    assert stage.answer(5) == [5]
    hold.open()
    assert ended(load) is None
    new = stage.registry.resolve("m")
    assert new.model_id != old.model_id
    assert stage.answer(6) == [6]
    stage.settle()
    assert [model.unloaded for model in stage.backend.loaded] == [False]


def test_a_reload_goes_on_with_account_counters_and_queue(stage):
    old = stage.load()
    assert stage.answer() == [0]
    hold = stage.hold_run()
    running, queued = stage.ask(1), stage.ask(2, rows=4)
    hold.wait_entered()
    stage.control.on_retired = lambda generation: None  # its requests are not done
    load = stage.control.load_model("m", stage.root / "m")
    hold.open()
    assert ended(load) is None
    assert [future.result(30).outputs["y"][0, 0] for future in (running, queued)] == [1, 2]
    stage.settle()
    new = stage.registry.resolve("m")
    assert new.account is old.account
    assert (stage.stats().requests, stage.stats().rows) == (3, 6)


def test_the_costs_of_a_new_version_are_its_own(stage):
    stage.backend.cost = lambda variant, size: 1.0
    stage.load()
    stage.backend.cost = lambda variant, size: 100.0
    stage.load()
    assert {round(seconds) for seconds in stage.stats().costs.values()} == {100}


def test_a_failed_reload_keeps_the_old_version_and_says_why_until_one_succeeds(stage):
    old = stage.load()
    path = write_identity_bundle(stage.root, manifest="nonsense: 1\n")
    assert isinstance(ended(stage.control.load_model("m", path)), BundleError)
    state, reason = stage.states()["m"]
    assert state == "READY"
    assert "nonsense" in reason
    assert stage.registry.resolve("m") is old
    assert stage.answer(4) == [4]
    stage.load()
    assert stage.states() == {"m": ("READY", "")}


def test_a_reload_keeps_a_policy_that_was_set(stage):
    stage.policies["m"] = ModelPolicy(weight=2)
    stage.load()
    assert stage.stats().weight == 2
    stage.tuning.set_policy("m", lambda _: ModelPolicy(weight=5)).result(30)
    stage.load()
    assert stage.stats().weight == 5


def test_a_replaced_version_is_handed_over_once_the_new_one_serves(stage):
    old = stage.load()
    seen = []
    stage.control.on_retired = lambda generation: seen.append((generation, stage.registry.resolve("m")))
    stage.load()
    assert [retired for retired, _ in seen] == [old]
    assert seen[0][1] is not old
    assert len(stage.backend.loaded) == 2
    stage.control.free(old)
    stage.settle()
    assert len(stage.backend.loaded) == 1


# unload


def test_queued_requests_of_an_unloaded_model_are_told_so(stage):
    stage.load()
    hold = stage.hold_run()
    running = stage.ask(1)
    hold.wait_entered()
    queued = stage.ask(2)
    unload = stage.control.unload_model("m")
    hold.open()
    assert running.result(30).outputs["y"][0, 0] == 1
    error = queued.exception(30)
    assert isinstance(error, ModelNotFound)
    assert error.message == "model 'm' was unloaded"
    assert ended(unload) is None
    assert stage.states() == {"m": ("UNAVAILABLE", "unloaded")}
    assert stage.backend.loaded == []


def test_unloading_twice_is_no_error_and_an_unknown_name_is(stage):
    stage.load()
    assert ended(stage.control.unload_model("m")) is None
    assert ended(stage.control.unload_model("m")) is None
    assert isinstance(ended(stage.control.unload_model("absent")), ModelNotFound)


def test_a_model_that_was_unloaded_begins_anew(stage):
    stage.load().account.accepted = 7
    stage.control.unload_model("m").result(30)
    assert stage.load().account.accepted == 0
    assert stage.stats().dispatches == 0


def test_a_removed_model_is_forgotten(stage):
    stage.load()
    assert ended(stage.control.remove_model("m")) is None
    assert stage.states() == {}
    assert stage.dispatcher.stats().models == {}
    assert isinstance(ended(stage.control.remove_model("m")), ModelNotFound)


def test_an_unload_stops_a_load_under_way(stage):
    path = write_identity_bundle(stage.root)
    hold = stage.hold_compile()
    load = stage.control.load_model("m", path)
    hold.wait_entered()
    stage.control.unload_model("m").result(30)
    hold.open()
    assert isinstance(ended(load), ModelUnavailable)
    assert stage.states() == {"m": ("UNAVAILABLE", "unloaded")}
    assert stage.backend.loaded == []


# rename


def test_a_renamed_model_keeps_generation_counters_and_queue(stage):
    old = stage.load("old")
    assert stage.answer(name="old") == [0]
    hold = stage.hold_run()
    running = stage.ask(1, name="old")
    hold.wait_entered()
    queued = stage.ask(2, name="old")
    rename = stage.control.rename_models([("old", "new")])
    hold.open()
    assert ended(rename) is None
    assert [future.result(30).outputs["y"][0, 0] for future in (running, queued)] == [1, 2]
    new = stage.registry.resolve("new")
    assert (new.model_id, new.account, new.holders) == (old.model_id, old.account, old.holders)
    assert new.bundle.spec.name == "new"
    assert stage.states() == {"new": ("READY", "")}
    assert (stage.stats("new").name, stage.stats("new").requests) == ("new", 3)
    assert stage.backend.compiled == ["old"]
    with pytest.raises(ModelNotFound):
        stage.registry.resolve("old")


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", "b"), ("b", "c")],  # a chain
        [("b", "c"), ("a", "b")],
        [("a", "b"), ("b", "a")],  # a ring
        [("a", "b"), ("b", "c"), ("c", "a")],
    ],
)
def test_chains_and_rings_of_renames_happen_at_once(stage, pairs):
    ids = {name: stage.load(name).model_id for name in "abc"[: len({each for pair in pairs for each in pair})]}
    stage.control.rename_models(pairs).result(30)
    renamed = dict(pairs)
    expected = {renamed.get(name, name): model_id for name, model_id in ids.items()}
    if ("b", "c") in pairs and len(pairs) == 2:  # c was taken over
        expected["c"] = ids["b"]
    assert {name: entry.generation.model_id for name, entry in stage.registry.entries.items()} == expected
    assert {name: stage.stats(name).name for name in expected} == {name: name for name in expected}


def test_a_model_whose_name_another_takes_is_retired_as_by_a_reload(stage):
    production, staging = stage.load("production"), stage.load("staging")
    seen = []
    stage.control.on_retired = lambda generation: seen.append((generation, stage.registry.resolve("production")))
    stage.control.rename_models([("staging", "production")]).result(30)
    [(retired, serving)] = seen
    assert (retired, serving.model_id) == (production, staging.model_id)
    assert stage.states() == {"production": ("READY", "")}
    stage.control.free(production)
    stage.settle()
    assert [model.spec.name for model in stage.backend.loaded] == ["staging"]


def test_a_renamed_model_takes_the_configured_policy_of_its_new_name(stage):
    stage.policies["production"] = ModelPolicy(weight=8, padding="repeat")
    stage.load("staging", sizes=(2,))
    stage.control.rename_models([("staging", "production")]).result(30)
    assert stage.stats("production").weight == 8
    seen = []
    stage.backend.on_run = lambda variant, size, inputs: seen.append(inputs["x"][:, 0].tolist())
    stage.answer(5, name="production")
    assert seen == [[5, 5]]


def test_a_renamed_model_keeps_a_policy_that_was_set(stage):
    stage.policies["production"] = ModelPolicy(weight=8)
    stage.load("staging")
    stage.tuning.set_policy("staging", lambda _: ModelPolicy(weight=3)).result(30)
    stage.control.rename_models([("staging", "production")]).result(30)
    assert stage.stats("production").weight == 3


def test_a_name_that_is_not_loaded_is_renamed_with_its_reason(stage):
    stage.control.announce(["a"], [], lambda names: None)
    stage.control.rename_models([("a", "b"), ("absent", "c")]).result(30)
    assert stage.states() == {"b": ("UNAVAILABLE", "not loaded")}


# announce, policy, stop


def test_the_models_of_the_start_are_known_before_anyone_is_told(stage):
    seen = []
    stage.control.announce(["idle"], ["m"], lambda names: seen.append((list(names), dict(stage.registry.entries))))
    assert stage.states() == {"idle": ("UNAVAILABLE", "not loaded"), "m": ("LOADING", "")}
    assert [(names, set(entries)) for names, entries in seen] == [(["m"], {"idle", "m"})]


def test_a_policy_is_in_force_from_the_next_dispatch_on(stage):
    stage.load()
    hold = stage.hold_run()
    running = stage.ask(0)
    hold.wait_entered()
    queued = [stage.ask(row) for row in range(1, 5)]
    change = stage.tuning.set_policy("m", lambda _: ModelPolicy(max_batch_size=2))
    hold.open()
    concurrent.futures.wait([running, *queued], 30)
    assert ended(change) is None
    assert [call.rows for call in stage.backend.calls] == [1, 2, 2]


def test_the_padding_of_a_policy_is_in_force_too(stage):
    stage.load(sizes=(4,))
    seen = []
    stage.backend.on_run = lambda variant, size, inputs: seen.append(inputs["x"][:, 0].tolist())
    stage.answer(5)
    stage.tuning.set_policy("m", lambda _: ModelPolicy(padding="repeat")).result(30)
    stage.answer(5)
    assert seen == [[5, 0, 0, 0], [5, 5, 5, 5]]


@pytest.mark.parametrize("configured", [True, False])
def test_batches_are_judged_by_the_padding_in_force(stage, configured):
    stage.backend.probes["m"] = BatchProbe((Deviation("y", Beside.ZEROS, "here", 0.5, 1.0),))
    if configured:
        stage.policies["m"] = ModelPolicy(padding="repeat")
    assert stage.load().bundle.spec.coalescible is configured
    stage.tuning.set_policy("m", lambda _: ModelPolicy(padding="repeat")).result(30)
    assert stage.load().bundle.spec.coalescible


def test_an_unsafe_model_runs_every_request_alone_whole_and_unpadded(stage):
    stage.backend.probes["m"] = BatchProbe((Deviation("y", Beside.NEIGHBOURS, "here", 0.5, 1.0),))
    stage.load(sizes=(2, 4))
    hold = stage.hold_run()
    first = stage.ask(0)
    hold.wait_entered()
    queued = [stage.ask(row, rows) for row, rows in ((1, 1), (2, 1), (10, 9))]
    hold.open()
    assert [each.result(30).outputs["y"][:, 0].tolist() for each in [first, *queued]] == [
        [0], [1], [2], list(range(10, 19)),
    ]  # fmt: skip
    assert [(call.rows, call.size) for call in stage.backend.calls] == [(1, 1), (1, 1), (1, 1), (9, 9)]


def test_a_policy_for_a_model_that_does_not_serve_is_refused(stage):
    assert isinstance(ended(stage.tuning.set_policy("absent", lambda _: ModelPolicy())), ModelNotFound)
    stage.control.announce(["m"], [], lambda names: None)
    assert isinstance(ended(stage.tuning.set_policy("m", lambda _: ModelPolicy())), ModelUnavailable)


def test_stopping_frees_every_model(stage):
    stage.load("a")
    stage.load("b")
    stage.control.stop().result(30)
    assert stage.backend.loaded == []


def test_a_load_after_the_end_fails_and_does_not_raise(stage):
    path = write_identity_bundle(stage.root)
    stage.loader.stop()
    assert isinstance(ended(stage.control.load_model("m", path)), ShuttingDown)


def test_a_load_under_way_ends_when_the_loader_stops_and_leaves_nothing_behind(stage):
    path = write_identity_bundle(stage.root)
    hold = stage.hold_run()
    load, later = stage.control.load_model("m", path), stage.control.load_model("n", path)
    hold.wait_entered()  # the first probe runs
    stopper = concurrent.futures.ThreadPoolExecutor(1)
    stopped = stopper.submit(stage.loader.stop)
    while not stage.backend.closed:
        os.sched_yield()
    hold.open()
    stopped.result(30)
    stopper.shutdown()
    assert isinstance(ended(load), ShuttingDown)
    assert isinstance(ended(later), ShuttingDown)
    assert len(stage.backend.calls) == 1
    assert stage.backend.loaded == []


def test_a_dispatcher_that_has_stopped_fails_loads(stage):
    path = write_identity_bundle(stage.root)
    stage.dispatcher.stop(30)
    assert isinstance(ended(stage.control.load_model("m", path)), ShuttingDown)
    assert stage.registry.entries == {}
