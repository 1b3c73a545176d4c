"""What the watcher makes of the model directories, look by look."""

import concurrent.futures
import logging
import shutil
import threading
from types import SimpleNamespace

import pytest

from app.domain.errors import ExecutionFailed, ModelNotFound
from app.engine.readiness import Readiness
from tests.builders import write_identity_bundle, write_meta_bundle


@pytest.fixture
def write(stage):
    """Write a bundle, or another version of it, into the model directory."""
    return lambda name="m", **bundle: write_identity_bundle(stage.root, name, **bundle)


def carried_out(pending):
    """Wait for the changes that a look began; how many failed."""
    assert concurrent.futures.wait(pending, 30).not_done == set()
    return sum(future.exception() is not None for future in pending)


def started(watcher):
    assert carried_out(watcher.first_look()) == 0
    return watcher


def looked(watcher, times=2):
    """So many looks; the failures of their changes."""
    return sum(carried_out(watcher.look_again()) for _ in range(times))


# the start


def test_the_start_loads_every_bundle(stage, write):
    write("a")
    write("b")
    started(stage.watch())
    assert stage.states() == {"a": ("READY", ""), "b": ("READY", "")}


def test_startup_models_are_loaded_and_the_others_known(stage, write):
    for name in ("en-small", "en-large", "de"):
        write(name)
    started(stage.watch(startup=["en-*"]))
    assert {name: state for name, (state, _) in stage.states().items()} == {
        "en-small": "READY",
        "en-large": "READY",
        "de": "UNAVAILABLE",
    }
    assert stage.states()["de"] == ("UNAVAILABLE", "not loaded")


def test_models_that_are_not_included_are_not_there(stage, write):
    write("a")
    write("b")
    watcher = started(stage.watch(include=["b"]))
    assert set(stage.states()) == {"b"}
    with pytest.raises(ModelNotFound):
        watcher.find("a")
    write("a", sizes=(1,))
    assert looked(watcher) == 0
    assert set(stage.states()) == {"b"}


def test_in_explicit_mode_nothing_is_loaded_and_everything_is_known(stage, write):
    path = write("a")
    watcher = started(stage.watch(startup=[]))
    assert stage.states() == {"a": ("UNAVAILABLE", "not loaded")}
    assert watcher.find("a") == path
    late = write("late")
    assert watcher.find("late") == late
    with pytest.raises(ModelNotFound, match=f"no bundle 'absent' in {stage.root}"):
        watcher.find("absent")
    with pytest.raises(ModelNotFound):
        watcher.find("../models/a")


def test_one_bad_bundle_stops_nobody(stage, write):
    write("good")
    bad = write("bad", manifest="kind: nonsense\n")
    watcher = stage.watch()
    assert carried_out(watcher.first_look()) == 1
    states = stage.states()
    assert states["good"] == ("READY", "")
    assert states["bad"][0] == "UNAVAILABLE"
    assert str(bad / "manifest.yaml") in states["bad"][1]


def test_a_bad_bundle_that_is_mended_is_loaded(stage, write):
    write("m", manifest="kind: nonsense\n")
    watcher = stage.watch()
    carried_out(watcher.first_look())
    write("m")
    assert looked(watcher) == 0
    assert stage.states() == {"m": ("READY", "")}


def test_the_thread_loads_the_start_and_ends_when_it_is_told(stage, write):
    write("a")
    watcher = stage.watch(poll_seconds=1000)
    hold = stage.hold_compile()
    watcher.start()
    hold.wait_entered()
    assert not stage.readiness.ready(stage.registry.entries, alive=True)
    hold.open()
    stage.loader.submit(lambda: None).result(30)  # after the load
    assert stage.readiness.ready(stage.registry.entries, alive=True)
    watcher.stop()
    watcher.join()


def test_a_watcher_that_does_not_poll_looks_once(stage, write):
    write("a")
    watcher = stage.watch(poll_seconds=None)
    watcher.start()
    watcher.join()
    assert stage.states() == {"a": ("READY", "")}


def test_a_meta_model_that_lacks_what_it_calls_is_not_counted_as_ready(stage, write, caplog):
    write("a")
    write_meta_bundle(stage.root, calls=["gone"])
    caplog.set_level(logging.INFO, "app.runtime.watcher")
    watcher = stage.watch(poll_seconds=None)
    watcher.start()
    watcher.join()
    told = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "app.runtime.watcher"]
    assert told == [
        ("WARNING", "model meta: calls gone, not loaded: load that too"),
        ("INFO", "started: 1 of 2 models ready"),
    ]


def test_a_watcher_that_never_started_can_be_joined(stage):
    stage.watch().join()


def test_the_thread_ends_while_models_are_loading(stage, write):
    for name in "abc":
        write(name)
    hold = stage.hold_compile()
    watcher = stage.watch(poll_seconds=1000)
    watcher.start()
    hold.wait_entered()
    watcher.stop()
    stage.backend.close = hold.open
    stage.loader.stop()
    watcher.join()


@pytest.mark.parametrize("change", ["removed", "renamed"])
def test_a_model_of_the_start_that_is_gone_before_anyone_asks_keeps_nobody_waiting(stage, write, change):
    path, readiness = write("a"), Readiness(())
    watcher = started(stage.watch(readiness=readiness))
    if change == "removed":
        shutil.rmtree(path)
    else:
        path.rename(stage.root / "b")
    assert looked(watcher) == 0
    assert "a" not in stage.states()
    assert readiness.ready(stage.registry.entries, alive=True)


# changes


def test_a_new_bundle_is_loaded_once_two_looks_saw_the_same(stage, write):
    watcher = started(stage.watch())
    write("m")
    assert watcher.look_again() == []
    assert stage.states() == {}
    assert looked(watcher, 1) == 0
    assert stage.states() == {"m": ("READY", "")}
    assert watcher.look_again() == []


def test_a_bundle_that_is_being_copied_waits(stage, write):
    watcher = started(stage.watch())
    path = write("m")
    model = (path / "model.onnx").read_bytes()
    for length in (10, 20, 30):
        (path / "model.onnx").write_bytes(model[:length])
        assert watcher.look_again() == []
    (path / "model.onnx").write_bytes(model)
    assert watcher.look_again() == []
    assert looked(watcher, 1) == 0
    assert stage.states() == {"m": ("READY", "")}


def test_a_changed_bundle_is_reloaded_once_two_looks_saw_the_same(stage, write):
    write("m")
    watcher = started(stage.watch())
    old = stage.registry.resolve("m").model_id
    write("m", sizes=(1, 2, 4, 8))
    assert watcher.look_again() == []
    assert stage.registry.resolve("m").model_id == old
    assert looked(watcher, 1) == 0
    assert stage.registry.resolve("m").model_id != old
    assert stage.registry.resolve("m").bundle.spec.largest("default") == 8


def test_a_change_to_a_bad_bundle_keeps_the_old_version_serving(stage, write):
    write("m")
    watcher = started(stage.watch())
    write("m", manifest="kind: nonsense\n")
    assert looked(watcher) == 1
    state, reason = stage.states()["m"]
    assert (state, "nonsense" in reason) == ("READY", True)
    assert stage.answer(3) == [3]
    assert looked(watcher) == 0  # not tried again until it changes


def test_a_bundle_that_is_gone_is_unloaded_once_two_looks_missed_it(stage, write):
    path = write("m")
    watcher = started(stage.watch())
    shutil.rmtree(path)
    assert watcher.look_again() == []
    assert stage.answer() == [0]
    assert looked(watcher, 1) == 0
    assert stage.states() == {}
    assert stage.backend.loaded == []


def test_a_bundle_that_was_away_for_one_look_is_left_alone(stage, write):
    path = write("m")
    watcher = started(stage.watch())
    shutil.move(path, stage.root.parent / "away")
    assert watcher.look_again() == []
    shutil.move(stage.root.parent / "away", path)
    assert looked(watcher) == 0
    assert len(stage.backend.compiled) == 1


# renames


def test_a_renamed_bundle_is_renamed_in_place(stage, write):
    path = write("old")
    watcher = started(stage.watch())
    old = stage.registry.resolve("old")
    path.rename(stage.root / "new")
    assert looked(watcher) == 0
    assert stage.registry.resolve("new").model_id == old.model_id
    assert stage.states() == {"new": ("READY", "")}
    assert stage.backend.compiled == ["old"]
    assert looked(watcher) == 0


def test_production_goes_to_old_and_staging_to_production_in_one_round(stage, write):
    write("production")
    write("staging", sizes=(1, 2))
    watcher = started(stage.watch())
    production, staging = (stage.registry.resolve(name) for name in ("production", "staging"))
    production.account.accepted = 7
    hold = stage.hold_run()
    running = stage.ask(1, name="production")
    hold.wait_entered()
    queued = stage.ask(2, name="staging")
    (stage.root / "production").rename(stage.root / "old")
    (stage.root / "staging").rename(stage.root / "production")
    watcher.look_again()
    pending = watcher.look_again()
    hold.open()
    assert carried_out(pending) == 0
    assert [future.result(30).outputs["y"][0, 0] for future in (running, queued)] == [1, 2]
    assert stage.states() == {"old": ("READY", ""), "production": ("READY", "")}
    assert stage.registry.resolve("old").model_id == production.model_id
    assert stage.registry.resolve("old").account.accepted == 7
    assert stage.registry.resolve("production").model_id == staging.model_id
    assert (stage.stats("old").requests, stage.stats("production").requests) == (1, 1)
    assert stage.backend.compiled == ["production", "staging"]


def test_a_bundle_that_takes_the_place_of_a_removed_one_leaves_no_gap(stage, write):
    path = write("production")
    write("staging", sizes=(1, 2))
    watcher = started(stage.watch())
    production, staging = (stage.registry.resolve(name) for name in ("production", "staging"))
    retired = []
    stage.control.on_retired = lambda generation: retired.append((generation, stage.registry.resolve("production")))
    shutil.rmtree(path)
    (stage.root / "staging").rename(path)
    assert looked(watcher) == 0
    [(old, serving)] = retired
    assert (old, serving.model_id) == (production, staging.model_id)


def test_a_renamed_bundle_whose_load_had_failed_is_tried_again(stage, write):
    """Perhaps it failed since it was renamed while it was read."""
    path = write("old")

    def fail(*_):
        stage.backend.on_compile = None
        raise ExecutionFailed("boom")

    stage.backend.on_compile = fail
    watcher = stage.watch()
    assert carried_out(watcher.first_look()) == 1
    path.rename(stage.root / "new")
    assert looked(watcher) == 0
    assert stage.states() == {"new": ("READY", "")}


def test_a_bad_bundle_is_no_obstacle_in_a_chain_of_renames(stage, write):
    write("production", manifest="kind: nonsense\n")
    write("staging")
    watcher = stage.watch()
    carried_out(watcher.first_look())
    staging = stage.registry.resolve("staging").model_id
    (stage.root / "production").rename(stage.root / "old")
    (stage.root / "staging").rename(stage.root / "production")
    assert looked(watcher) == 1
    assert {name: state for name, (state, _) in stage.states().items()} == {"old": "UNAVAILABLE", "production": "READY"}
    assert stage.registry.resolve("production").model_id == staging


def test_a_serving_model_outlives_a_bad_bundle_that_takes_its_name(stage, write):
    path = write("production")
    write("staging", manifest="kind: nonsense\n")
    watcher = stage.watch()
    carried_out(watcher.first_look())
    shutil.rmtree(path)
    (stage.root / "staging").rename(path)
    assert looked(watcher) == 1
    state, reason = stage.states()["production"]
    assert (state, "nonsense" in reason) == ("READY", True)
    assert set(stage.states()) == {"production"}


# problems


def test_a_vanished_directory_changes_nothing_and_is_a_problem(stage, write):
    write("m")
    watcher = started(stage.watch())
    stage.root.rename(stage.root.parent / "elsewhere")
    assert looked(watcher, 3) == 0
    assert stage.states() == {"m": ("READY", "")}
    assert stage.answer(2) == [2]
    assert "cannot be read" in watcher.problems[stage.root]
    (stage.root.parent / "elsewhere").rename(stage.root)
    assert looked(watcher) == 0
    assert watcher.problems == {}
    assert len(stage.backend.compiled) == 1


def test_a_directory_that_is_not_there_at_the_start_is_a_problem_and_its_bundles_come_later(stage, write):
    absent = stage.root / "later"
    watcher = started(stage.watch(roots=[absent]))
    assert set(watcher.problems) == {absent}
    stage.settle()
    assert not stage.readiness.ready(stage.registry.entries, alive=True), "it would look like a server without models"
    write_identity_bundle(absent, "m")
    assert looked(watcher) == 0
    assert stage.states() == {"m": ("READY", "")}
    assert stage.readiness.ready(stage.registry.entries, alive=True)


def test_one_directory_of_two_that_cannot_be_read_keeps_nobody_from_being_ready(stage, write):
    write("m")
    started(stage.watch(roots=[stage.root / "absent", stage.root]))
    stage.settle()
    assert stage.readiness.ready(stage.registry.entries, alive=True)


def test_a_problem_is_logged_when_it_comes_up_and_when_it_changes(stage, write, caplog):
    watcher = started(stage.watch())
    write("no name")
    with caplog.at_level(logging.ERROR, "app.runtime.watcher"):
        looked(watcher, 3)
    [error] = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert "no model name" in error


def warned(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_what_is_passed_over_is_told_once_and_keeps_nobody_from_being_ready(stage, caplog):
    file = stage.root / "small.onnx"
    file.touch()
    watcher = started(stage.watch())
    assert looked(watcher, 3) == 0
    assert [line.split(": ")[0] for line in warned(caplog)] == [str(file)]
    assert "small/model.onnx" in watcher.problems[file]
    stage.settle()
    assert stage.readiness.ready(stage.registry.entries, alive=True)
    file.unlink()
    looked(watcher, 1)
    assert file not in watcher.problems


def test_a_directory_that_is_being_filled_is_not_told_of(stage, write, caplog):
    write("a")
    watcher = started(stage.watch())
    (stage.root / "m").mkdir()
    watcher.look_again()
    write("m")
    assert looked(watcher) == 0
    assert warned(caplog) == []
    (stage.root / "n").mkdir()
    looked(watcher)
    assert len(warned(caplog)) == 1


def test_names_in_settings_that_no_bundle_has_are_told_once_and_looked_for_again(stage, write, caplog):
    write("tabular")
    named = {"INCLUDE": ["*", "tab*"], "STARTUP": ["nope-*"], "MODELS": ["tabula"]}
    watcher = started(stage.watch(named=named))
    looked(watcher)
    assert warned(caplog) == [
        "STARTUP: nope-*: the model directories hold no such model",
        "MODELS: tabula: the model directories hold no such model: did you mean 'tabular'?",
    ]
    assert set(watcher.problems) == {"STARTUP: nope-*", "MODELS: tabula"}
    write("tabula")
    looked(watcher)
    assert set(watcher.problems) == {"STARTUP: nope-*"}


def test_where_a_directory_cannot_be_read_nobody_knows_which_names_there_are(stage):
    watcher = started(stage.watch(roots=[stage.root / "absent"], named={"MODELS": ["a"]}))
    assert set(watcher.problems) == {stage.root / "absent"}


@pytest.mark.parametrize("late", [False, True])
def test_a_look_that_fails_is_tried_again(stage, monkeypatch, caplog, late):
    """Whether it is the first or a later one."""
    path = write_identity_bundle(stage.root.parent, "m")
    announced, again, load_model = threading.Event(), threading.Event(), stage.control.load_model

    def fail_once(*_):
        monkeypatch.setattr(stage.control, "load_model", succeed)
        raise RuntimeError("unforeseen")

    def succeed(name, path):
        again.set()
        return load_model(name, path)

    monkeypatch.setattr(stage.control, "load_model", fail_once)
    watcher = stage.watch(poll_seconds=0.001, readiness=SimpleNamespace(expect=lambda names: announced.set()))
    if late:
        watcher.start()
        assert announced.wait(30)
    path.rename(stage.root / "m")
    if not late:
        watcher.start()
    assert again.wait(30)
    watcher.stop()
    watcher.join()
    assert stage.answer(3) == [3]
    assert watcher.problems == {}
    [record] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.exc_info is not None


def test_a_failed_look_is_a_problem_of_every_directory(stage, write, monkeypatch):
    def fail(*_):
        raise RuntimeError("unforeseen")

    write("m")
    watcher = stage.watch(poll_seconds=None)
    monkeypatch.setattr(stage.control, "load_model", fail)
    watcher.start()
    watcher.join()
    assert "unforeseen" in watcher.problems[stage.root]


def test_of_two_bundles_with_one_name_the_earlier_directory_wins_and_the_other_is_a_problem(stage, write):
    path, other = write("m"), write_identity_bundle(stage.root.parent / "more", "m", sizes=(1,))
    watcher = started(stage.watch(roots=[stage.root, other.parent]))
    assert stage.registry.resolve("m").bundle.path == path
    assert set(watcher.problems) == {other}
