"""What fails fails alone: it says why in its state, the others go on serving, and it comes back when it can."""

import concurrent.futures
import threading

import pytest

from app.domain.errors import BundleError, ExecutionFailed, ModelUnavailable, OutOfMemory, ServingError
from tests.builders import write_identity_bundle

SIZES = (1, 2)
KNOWN = {("default", size): 0.01 for size in SIZES}


@pytest.fixture
def cold(make_stage):
    """Two models that were measured before, of which neither is on the device; one that is gone is loaded anew."""
    stage = make_stage(arena=20)

    def remake(model_id):
        name = stage.registry.name_of(model_id)
        return stage.control.load_model(name, stage.watcher.find(name))

    stage.control._keeper.remake = remake
    for name in "ab":
        stage.backend.weights[name] = 10
        stage.backend.costs[name] = KNOWN
        stage.load(name, sizes=SIZES)
    return stage


def gone(entry, spec):
    raise BundleError(f"{spec.name}: the compile-cache entry is gone")


def gone_once(stage):
    """The next sessions cannot be made; those after them can."""

    def once(entry, spec):
        stage.backend.on_prepare = None
        gone(entry, spec)

    stage.backend.on_prepare = once


def failure(future):
    return future.exception(30)


def settle(stage):
    """Wait for the threads that bring weights and load bundles, in this order."""
    stage.settle()
    stage.control._keeper.submit(lambda: None).result(30)
    stage.loader.submit(lambda: None).result(30)
    stage.settle()


# loads


@pytest.mark.parametrize(
    "error",
    [
        BundleError("m: model.onnx: ONNX Runtime cannot run it: no such operator"),
        BundleError("m: cannot be compiled: the compile child died of SIGKILL"),
        OutOfMemory("m: no memory to load it"),
        MemoryError("no memory"),
        OSError(28, "No space left on device"),
        RuntimeError("a fault of our own"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("step", ["on_compile", "on_prepare"])
def test_a_load_that_fails_says_why_while_the_others_serve_and_the_next_one_may_succeed(stage, step, error):
    stage.load("other")
    path = write_identity_bundle(stage.root)

    def fail(*_):
        raise error

    setattr(stage.backend, step, fail)
    assert failure(stage.control.load_model("m", path)) is error
    state, reason = stage.states()["m"]
    assert state == "UNAVAILABLE"
    assert str(error) in reason
    assert "\n" not in reason
    assert stage.answer(3, name="other") == [3.0]
    assert [model.spec.name for model in stage.backend.loaded] == ["other"]
    assert [each.model_id.partition("@")[0] for each in stage.weights.snapshot().models.values()] == ["other"]
    setattr(stage.backend, step, None)
    stage.control.load_model("m", path).result(30)
    assert stage.states()["m"] == ("READY", "")
    assert stage.answer(4) == [4.0]


def test_a_reload_that_fails_leaves_the_old_version_serving_and_says_why(stage):
    stage.load()
    stage.backend.on_prepare = gone
    with pytest.raises(BundleError):
        stage.load()
    assert stage.states()["m"] == ("READY", "m: the compile-cache entry is gone")
    assert stage.answer(5) == [5.0]


# executions


@pytest.mark.parametrize("error", [OutOfMemory("full"), MemoryError()])
def test_a_model_that_found_no_memory_to_come_back_to_comes_back_when_there_is_some(stage, error):
    stage.load("other")
    stage.load()

    def full(*_):
        raise OutOfMemory("no memory to load it")

    stage.backend.on_prepare = full
    stage.backend.fail_next(error)
    assert isinstance(failure(stage.ask(1)), OutOfMemory)
    assert isinstance(failure(stage.ask(2)), OutOfMemory)
    assert stage.answer(3, name="other") == [3.0]
    stage.backend.on_prepare = None
    assert stage.answer(4) == [4.0]
    assert stage.states()["m"] == ("READY", "")


def test_a_model_on_demand_that_found_no_memory_to_come_back_to_is_brought_again(cold):
    assert cold.answer(1, name="a") == [1.0]

    def full(*_):
        raise OutOfMemory("no memory to load it")

    cold.backend.on_prepare = full
    cold.backend.fail_next(OutOfMemory("full"))
    assert isinstance(failure(cold.ask(2, name="a")), OutOfMemory)
    assert isinstance(failure(cold.ask(3, name="a")), OutOfMemory)
    cold.backend.on_prepare = None
    assert cold.answer(4, name="b") == [4.0]
    threads = []
    cold.backend.on_prepare = lambda *_: threads.append(threading.current_thread().name)
    assert cold.answer(5, name="a") == [5.0]
    assert threads == ["weights_0"]  # not on the dispatcher's time


def test_a_fault_of_one_model_is_not_one_of_the_others(stage):
    stage.load("other")
    stage.load()
    for _ in range(3):
        stage.backend.fail_next(ExecutionFailed("broken"))
        assert isinstance(failure(stage.ask(1)), ExecutionFailed)
        assert stage.answer(2, name="other") == [2.0]
    assert stage.dispatcher.alive


# a compile cache that somebody removed


def test_a_cold_model_whose_entry_is_gone_is_compiled_anew_and_callers_are_told_to_come_again(cold):
    first = cold.registry.resolve("a")
    cold.backend.on_prepare = gone
    cold.backend.compiled.clear()
    hold = cold.hold_compile()
    error = failure(cold.ask(name="a"))
    assert isinstance(error, ModelUnavailable)
    assert error.code == "load_failed"
    hold.wait_entered()
    assert isinstance(failure(cold.ask(name="a")), ModelUnavailable)
    assert isinstance(failure(cold.ask(name="b")), ModelUnavailable)
    cold.backend.on_prepare = None
    hold.open()
    settle(cold)
    assert cold.backend.compiled == ["a", "b"]  # once each, whoever asked
    assert cold.registry.resolve("a").model_id != first.model_id
    assert [cold.answer(row, name=name) for row, name in enumerate("ab")] == [[0.0], [1.0]]


def test_a_bundle_that_is_gone_too_is_said_to_be_and_others_serve(cold, caplog):
    for file in (cold.root / "a").iterdir():
        file.unlink()
    cold.backend.on_prepare = lambda entry, spec: gone(entry, spec) if spec.name == "a" else None
    for _ in range(2):
        assert isinstance(failure(cold.ask(name="a")), ServingError)
        settle(cold)
    assert caplog.text.count("cannot be compiled anew: no bundle 'a'") == 2
    assert cold.answer(1, name="b") == [1.0]


def test_what_stopped_making_it_anew_is_the_models_reason_and_the_next_request_tries_again(cold):
    cold.backend.on_prepare = gone

    def full(*_):
        raise OSError(28, "No space left on device")

    cold.backend.on_compile = full
    assert isinstance(failure(cold.ask(name="a")), ModelUnavailable)
    settle(cold)
    assert cold.states()["a"] == ("READY", "OSError: [Errno 28] No space left on device")
    cold.backend.on_compile = None
    gone_once(cold)
    assert isinstance(failure(cold.ask(name="a")), ModelUnavailable)
    settle(cold)
    assert cold.states()["a"] == ("READY", "")
    assert cold.answer(1, name="a") == [1.0]


def test_a_run_without_memory_whose_entry_is_gone_makes_it_anew(stage):
    stage.control._keeper.remake = lambda model_id: stage.control.load_model("m", stage.root / "m")
    stage.load()
    gone_once(stage)
    stage.backend.fail_next(OutOfMemory("full"))
    assert isinstance(failure(stage.ask(1)), ModelUnavailable)
    settle(stage)
    assert stage.answer(2) == [2.0]


def test_making_anew_ends_with_the_server(cold):
    cold.backend.on_prepare = gone
    hold = cold.hold_compile()
    asked = [cold.ask(name=name) for name in "ab"]
    hold.wait_entered()
    cold.loader._stopping = True
    hold.open()
    concurrent.futures.wait(asked, 30)
    assert all(isinstance(failure(each), ServingError) for each in asked)
