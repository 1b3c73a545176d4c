"""More models than the device holds: weights come and go while others are served."""

import asyncio
import threading
from math import inf

import pytest

from app.domain.batch_safety import BatchProbe, Beside, Deviation
from app.domain.config import ModelPolicy, Residency
from app.domain.errors import (
    DeadlineExceeded,
    ExecutionFailed,
    ModelNotFound,
    ModelUnavailable,
    OutOfMemory,
    Unsupported,
)
from tests.builders import rows_of

SIZES = (1, 2)
KNOWN = {("default", size): 0.01 for size in SIZES}


def put(stage, *names, nbytes=10, known=True, **policy):
    """Load models of so many bytes; those that were measured before are not on the device yet."""
    for name in names:
        stage.backend.weights[name] = nbytes
        if known:
            stage.backend.costs[name] = KNOWN
        if policy:
            stage.policies[name] = ModelPolicy(**policy)
        stage.load(name, sizes=SIZES)


def resident(stage):
    """Names of the models on the device, in alphabetical order."""
    stage.settle()
    return sorted(each.model_id.partition("@")[0] for each in stage.weights.snapshot().models.values() if each.resident)


def told(stage, name):
    stage.settle()
    model_id = stage.registry.resolve(name).model_id
    return next(each for each in stage.weights.snapshot().models.values() if each.model_id == model_id)


class Watched:
    """Records the bytes on the device whenever sessions are made."""

    def __init__(self, stage):
        self.stage = stage
        self.most = 0
        self.order = []
        stage.backend.on_prepare = self

    def __call__(self, entry, spec):
        there = sum(model.weight_bytes for model in self.stage.backend.loaded)
        self.most = max(self.most, there + entry.weight_bytes)
        self.order.append(spec.name)


def test_weights_come_with_the_first_request(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b", "c")
    assert resident(stage) == []
    assert stage.answer(7, name="a") == [7.0]
    assert resident(stage) == ["a"]


def test_room_for_two_and_a_b_a_c_evicts_b(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b", "c")
    for name in "abac":
        stage.answer(name=name)
    assert resident(stage) == ["a", "c"]
    assert (told(stage, "b").loads, told(stage, "b").evicts) == (1, 1)


def test_a_model_that_was_never_measured_is_probed_on_the_device_first(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b", "c", known=False)
    assert resident(stage) == ["b", "c"]
    assert stage.backend.remembered["c"].keys() == KNOWN.keys()


def test_every_answer_is_right_and_the_budget_holds_whatever_is_asked(make_stage):
    stage = make_stage(arena=35)
    names = [f"m{index}" for index in range(8)]
    put(stage, *names)
    watched = Watched(stage)
    futures = [(row, stage.ask(row, name=names[row * 5 % 8])) for row in range(64)]
    assert [future.result(30).outputs["y"][0, 0] for _, future in futures] == list(range(64))
    assert watched.most <= 30
    assert stage.weights.snapshot().resident_bytes <= 35


@pytest.mark.parametrize("nbytes", [10, 1000])
def test_a_model_that_is_never_idle_leaves_for_one_that_needs_its_room(make_stage, nbytes):
    stage = make_stage(arena=20)
    put(stage, "busy", nbytes=15)
    put(stage, "other", nbytes=nbytes)
    stage.answer(name="busy")
    depths = []
    stage.backend.on_prepare = lambda entry, spec: depths.append(stage.stats("busy").queue_depth)
    hold = stage.hold_run()
    first = stage.ask(name="busy")
    hold.wait_entered()
    others = [stage.ask(7, name="other"), *[stage.ask(name="busy") for _ in range(20)]]
    stage.clock.skip(1.0)
    hold.open()
    assert [future.result(30).outputs["y"].shape[0] for future in [first, *others]] == [1] * 22
    assert depths[0] == 20


def test_a_load_is_not_waited_for(make_stage):
    stage = make_stage(arena=20)
    put(stage, "here", "coming")
    stage.answer(name="here")
    gate, entered = threading.Event(), threading.Event()

    def hold(entry, spec):
        entered.set()
        assert gate.wait(30)

    stage.backend.on_prepare = hold
    late = stage.ask(1, name="coming")
    assert entered.wait(30)
    assert [stage.answer(row, name="here") for row in range(5)] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert not late.done()
    gate.set()
    part = late.result(30)
    assert part.outputs["y"][0, 0] == 1.0
    assert part.facts.load_seconds > 0.0


@pytest.mark.plain
def test_while_a_load_is_under_way_nobody_asks_for_the_next(make_stage, monkeypatch):
    """What there is to ask for is worked out of every queue; with many models that is more than a decision."""
    stage = make_stage(arena=20)
    put(stage, "here", "coming", "third")
    stage.answer(name="here")
    gate, entered = threading.Event(), threading.Event()

    def hold(entry, spec):
        entered.set()
        assert gate.wait(30)

    stage.backend.on_prepare = hold
    late = stage.ask(1, name="coming")
    assert entered.wait(30)
    with stage.dispatcher.locked() as scheduler:
        ask, asked = scheduler.wanted, list[float]()

        def wanted(now):
            asked.append(now)
            return ask(now)

        monkeypatch.setattr(scheduler, "wanted", wanted)
    third = stage.ask(2, name="third")
    for row in range(5):
        stage.answer(row, name="here")
    assert asked == []
    gate.set()
    assert [late.result(30).outputs["y"][0, 0], third.result(30).outputs["y"][0, 0]] == [1.0, 2.0]
    assert asked


def test_a_request_that_arrives_after_the_load_waited_for_none(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a")
    stage.answer(name="a")
    assert stage.ask(name="a").result(30).facts.load_seconds == 0.0


def test_loads_are_learned(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a")
    stage.backend.on_prepare = lambda *_: stage.clock.skip(2.0)
    stage.answer(name="a")
    assert told(stage, "a").load_seconds == pytest.approx(2.0, abs=0.5)


def test_a_model_larger_than_the_budget_is_served_alone(make_stage, caplog):
    stage = make_stage(arena=20)
    put(stage, "a", "b")
    put(stage, "huge", nbytes=1000)
    stage.answer(name="a")
    stage.answer(name="b")
    assert stage.answer(3, name="huge") == [3.0]
    assert resident(stage) == ["huge"]
    assert "model huge@3 is loaded alone" in caplog.text
    assert stage.answer(4, name="a") == [4.0]
    assert resident(stage) == ["a"]


def test_a_pinned_model_stays(make_stage):
    stage = make_stage(arena=20)
    put(stage, "pinned", residency=Residency.DEVICE)
    assert resident(stage) == ["pinned"]
    put(stage, "a", "b")
    for name in "abab":
        stage.answer(name=name)
    assert resident(stage) == ["b", "pinned"]
    assert told(stage, "pinned").loads == 1


def test_without_a_budget_everything_stays(make_stage):
    stage = make_stage()
    put(stage, "a", "b", nbytes=10**12)
    assert resident(stage) == ["a", "b"]


def test_a_load_that_fails_fails_what_waits_and_the_next_request_tries_again(make_stage, caplog):
    stage = make_stage(arena=20)
    put(stage, "a")

    def once(*_):
        stage.backend.on_prepare = None
        raise RuntimeError("the file is gone")

    stage.backend.on_prepare = once
    with pytest.raises(ExecutionFailed) as caught:
        stage.ask(name="a").result(30)
    assert caught.value.code == "load_failed"
    assert "the file is gone" in caplog.text
    assert stage.answer(2, name="a") == [2.0]


def test_no_memory_for_weights_is_told_as_that(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a")
    stage.backend.on_prepare = lambda *_: (_ for _ in ()).throw(OutOfMemory("no room"))
    with pytest.raises(OutOfMemory, match="no memory for the weights"):
        stage.ask(name="a").result(30)


def test_a_model_may_be_unloaded_while_its_weights_come(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b")
    gate, entered = threading.Event(), threading.Event()

    def hold(entry, spec):
        entered.set()
        assert gate.wait(30)

    stage.backend.on_prepare = hold
    late = stage.ask(name="a")
    assert entered.wait(30)
    stage.control.unload_model("a").result(30)
    with pytest.raises(ModelNotFound):
        late.result(30)
    stage.backend.on_prepare = None
    gate.set()
    assert stage.answer(5, name="b") == [5.0]
    assert resident(stage) == ["b"]
    assert [model.spec.name for model in stage.backend.loaded] == ["b"]


def test_a_reload_goes_on_under_the_budget(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b")
    stage.answer(name="a")
    stage.answer(name="b")
    put(stage, "a", known=False)
    assert stage.answer(1, name="a") == [1.0]
    assert stage.answer(2, name="b") == [2.0]
    assert stage.weights.snapshot().resident_bytes <= 20


def test_an_execution_that_finds_no_memory_is_tried_again_once_with_the_others_gone(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b")
    stage.answer(name="a")
    stage.answer(name="b")
    stage.backend.fail_next(OutOfMemory("full"))
    assert stage.answer(3, name="a") == [3.0]
    assert resident(stage) == ["a"]
    assert told(stage, "a").loads == 2
    stage.backend.fail_next(OutOfMemory("full"), OutOfMemory("full"))
    with pytest.raises(OutOfMemory):
        stage.ask(name="a").result(30)
    assert stage.answer(4, name="a") == [4.0]


def test_no_memory_without_a_budget_leaves_the_other_models_where_they_are(make_stage):
    stage = make_stage()
    put(stage, "a", "b")
    stage.backend.fail_next(MemoryError())
    assert stage.answer(3, name="a") == [3.0]
    assert resident(stage) == ["a", "b"]


def test_compaction_frees_what_is_not_pinned_and_loads_what_it_is_told(make_stage):
    stage = make_stage(arena=40)
    put(stage, "pinned", residency=Residency.DEVICE)
    put(stage, "a", "b")
    stage.answer(name="a")
    stage.answer(name="b")
    done = stage.tuning.compact(["b"]).result(30)
    assert done == (30, 20)
    assert resident(stage) == ["b", "pinned"]
    assert (stage.backend.shrinks, stage.weights.snapshot().compactions) == (1, 1)
    assert stage.answer(2, name="a") == [2.0]


def test_compaction_of_an_unknown_model_frees_nothing(make_stage):
    stage = make_stage(arena=40)
    put(stage, "a")
    stage.answer(name="a")
    with pytest.raises(ModelNotFound):
        stage.tuning.compact(["a", "absent"]).result(30)
    assert resident(stage) == ["a"]


def test_compaction_without_a_budget_moves_nothing(make_stage):
    stage = make_stage()
    put(stage, "a")
    assert stage.tuning.compact([]).result(30) == (10, 10)
    assert (resident(stage), stage.backend.shrinks) == (["a"], 0)


def test_prefetching_brings_weights_before_they_are_asked_for_in_place_of_unused_ones(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a", "b", "c")
    stage.answer(name="a")
    stage.tuning.prefetch(["b"]).result(30)
    assert resident(stage) == ["a", "b"]
    stage.tuning.prefetch(["c"]).result(30)
    assert resident(stage) == ["b", "c"]
    assert stage.answer(3, name="c") == [3.0]


def test_prefetching_without_a_budget_or_what_is_there_loads_nothing(make_stage):
    stage = make_stage()
    put(stage, "a")
    stage.tuning.prefetch(["a"]).result(30)
    assert resident(stage) == ["a"]
    with pytest.raises(ModelNotFound):
        stage.tuning.prefetch(["absent"]).result(30)


def test_prefetching_is_the_operators_in_explicit_mode(make_stage):
    stage = make_stage(arena=30, external=True)
    put(stage, "a")
    with pytest.raises(Unsupported, match="set_residency"):
        stage.tuning.prefetch(["a"]).result(30)


def test_every_so_many_loads_the_device_is_compacted(make_stage):
    stage = make_stage(arena=30, compaction_interval=3)
    put(stage, "a", "b", "c")
    stage.answer(name="a")
    stage.answer(name="b")
    assert (resident(stage), stage.backend.shrinks) == (["a", "b"], 0)
    stage.answer(name="c")
    assert (resident(stage), stage.backend.shrinks) == (["c"], 1)


def test_residency_is_the_servers_own_affair_outside_explicit_mode(make_stage):
    stage = make_stage(arena=20)
    put(stage, "a")
    how = "start it with MODEL_CONTROL_MODE=explicit and use /admin/set_residency, or with SCHEDULER_MODELS"
    with pytest.raises(Unsupported, match=how):
        stage.tuning.set_residency("a", Residency.DEVICE).result(30)
    with pytest.raises(Unsupported, match=f"not changed by a policy: {how}"):
        stage.tuning.set_policy("a", lambda old: old.model_copy(update={"residency": Residency.DEVICE})).result(30)


def test_where_operators_move_weights_a_policy_that_would_says_how(make_stage):
    stage = make_stage(arena=20, external=True)
    put(stage, "a")
    with pytest.raises(Unsupported, match=r"not changed by a policy: use /admin/set_residency$"):
        stage.tuning.set_policy("a", lambda old: old.model_copy(update={"residency": Residency.DEVICE})).result(30)


def test_what_no_leaving_makes_room_for_is_not_said_to_need_room(make_stage):
    stage = make_stage(arena=5, external=True)
    with pytest.raises(OutOfMemory, match="have 10 bytes, and all weights together may fill 5: set RUNTIME_DEVICE"):
        put(stage, "a")


def test_of_several_models_that_are_brought_back_the_one_that_does_not_fit_is_named(make_stage):
    stage = make_stage(arena=25)
    put(stage, "a", "b", "c")
    with pytest.raises(OutOfMemory, match=r"^model 'c': the weights have 10 bytes"):
        stage.tuning.compact(["a", "b", "c"]).result(30)


# explicit mode


def test_in_explicit_mode_a_loaded_model_is_resident_and_nobody_leaves_for_another(make_stage):
    stage = make_stage(arena=25, external=True)
    put(stage, "a", "b")
    assert resident(stage) == ["a", "b"]
    with pytest.raises(OutOfMemory, match="have 10 bytes, and of the 25 that weights may fill 5 are free"):
        put(stage, "c")
    assert resident(stage) == ["a", "b"]
    assert stage.states()["c"][0] == "UNAVAILABLE"
    stage.control.unload_model("a").result(30)
    put(stage, "c")
    assert resident(stage) == ["b", "c"]


@pytest.mark.parametrize("elsewhere", [Residency.SYSTEM, Residency.UNPINNED])
def test_an_operator_takes_weights_off_and_on(make_stage, elsewhere):
    stage = make_stage(arena=20, external=True)
    put(stage, "a", "b")
    stage.tuning.set_residency("a", elsewhere).result(30)
    assert resident(stage) == ["b"]
    with pytest.raises(ModelUnavailable) as caught:
        stage.engine.resolve("a", None)
    assert caught.value.code == "not_resident"
    assert stage.states()["a"] == ("READY", "")
    put(stage, "c")
    with pytest.raises(OutOfMemory):
        stage.tuning.set_residency("a", Residency.DEVICE).result(30)
    stage.tuning.set_residency("b", elsewhere).result(30)
    stage.tuning.set_residency("a", Residency.DEVICE).result(30)
    stage.tuning.set_residency("a", Residency.DEVICE).result(30)
    assert stage.engine.resolve("a", None) is not None
    assert stage.answer(3, name="a") == [3.0]


def test_what_is_queued_when_the_weights_leave_is_refused(make_stage):
    stage = make_stage(arena=20, external=True)
    put(stage, "a", "b")
    hold = stage.hold_run()
    running = stage.ask(1, name="b")
    hold.wait_entered()
    waiting = stage.ask(2, name="a")
    change = stage.tuning.set_residency("a", Residency.SYSTEM)
    hold.open()
    change.result(30)
    assert running.result(30).outputs["y"][0, 0] == 1.0
    with pytest.raises(ModelUnavailable) as caught:
        waiting.result(30)
    assert caught.value.code == "not_resident"


def test_compaction_in_explicit_mode_leaves_only_what_it_is_told(make_stage):
    stage = make_stage(arena=20, external=True)
    put(stage, "a", "b")
    assert stage.tuning.compact(["b"]).result(30) == (20, 10)
    assert resident(stage) == ["b"]
    with pytest.raises(ModelUnavailable):
        stage.engine.resolve("a", None)
    assert stage.answer(1, name="b") == [1.0]


@pytest.mark.anyio
async def test_a_deadline_passes_while_weights_come(make_stage, put_loop_forward):
    stage = make_stage(arena=20)
    put(stage, "a")
    gate = threading.Event()
    stage.backend.on_prepare = lambda *_: gate.wait(30)
    late = asyncio.create_task(stage.infer({"x": rows_of(1, 1)}, "a", deadline=stage.clock() + 60))
    while not stage.stats("a").queue_depth:
        await asyncio.sleep(0)
    put_loop_forward(60)
    with pytest.raises(DeadlineExceeded):
        await late
    assert stage.stats("a").queue_depth == 0
    gate.set()
    assert (await stage.infer({"x": rows_of(1, 1)}, "a", deadline=inf)).outputs["y"][0, 0] == 1.0


@pytest.mark.parametrize("external", [False, True])
def test_a_model_that_is_brought_twice_is_there_once(make_stage, external):
    """Compaction with a reload, while the model has work: on demand and by order at once."""
    stage = make_stage(arena=20, external=external)
    put(stage, "a")
    stage.tuning.compact(["a"]).result(30)
    for row in range(5):
        hold = stage.hold_run()
        running = stage.ask(row, name="a")
        hold.wait_entered()
        waiting = [] if external else [stage.ask(row, name="a")]
        change = stage.tuning.compact(["a"])
        hold.open()
        change.result(30)
        for future in (running, *waiting):
            future.result(30)
        stage.settle()
        assert [model.spec.name for model in stage.backend.loaded] == ["a"]
        assert stage.weights.snapshot().resident_bytes == 10


def test_in_explicit_mode_a_run_without_memory_takes_nobody_else_off(make_stage):
    stage = make_stage(arena=30, external=True)
    put(stage, "a", "b")
    stage.backend.fail_next(OutOfMemory("full"))
    assert stage.answer(3, name="a") == [3.0]
    assert resident(stage) == ["a", "b"]
    assert stage.weights.snapshot().compactions == 0


def test_a_reload_in_compaction_that_fails_leaves_no_model_resident_in_name_only(make_stage):
    stage = make_stage(arena=20, external=True)
    put(stage, "a", "b")
    stage.backend.on_prepare = lambda *_: (_ for _ in ()).throw(OutOfMemory("no room"))
    with pytest.raises(OutOfMemory):
        stage.tuning.compact(["a"]).result(30)
    for name in "ab":
        with pytest.raises(ModelUnavailable):
            stage.engine.resolve(name, None)


def test_weights_that_come_and_cannot_be_taken_over_are_a_failed_load(make_stage, monkeypatch, caplog):
    stage = make_stage(arena=20)
    put(stage, "a")

    def refuse(*_):
        monkeypatch.undo()
        raise RuntimeError("CUDA error 700")

    monkeypatch.setattr("app.backends.fake.FakePrepared.load", refuse)
    with pytest.raises(ExecutionFailed):
        stage.ask(name="a").result(30)
    assert "CUDA error 700" in caplog.text
    assert stage.answer(1, name="a") == [1.0]


def test_what_nobody_waits_for_is_logged_when_it_fails(make_stage, caplog):
    stage = make_stage()

    def fail():
        raise RuntimeError("nobody listens")

    stage.dispatcher.post(fail)
    stage.settle()
    assert "nobody listens" in caplog.text
    assert stage.dispatcher.alive


def test_a_pinned_model_takes_its_room_once(make_stage):
    stage = make_stage(arena=30)
    put(stage, "a", "b")
    stage.answer(name="a")
    stage.answer(name="b")
    put(stage, "pinned", residency=Residency.DEVICE)
    assert resident(stage) == ["a", "b", "pinned"]


def test_a_reload_in_explicit_mode_keeps_what_the_operator_said(make_stage):
    stage = make_stage(arena=40, external=True)
    put(stage, "a")
    stage.tuning.set_residency("a", Residency.DEVICE).result(30)
    put(stage, "a")
    assert told(stage, "a").floor is Residency.DEVICE


def test_padding_that_makes_batches_unsafe_is_not_set_on_a_running_server(make_stage):
    stage = make_stage()
    probe = BatchProbe((Deviation("y", Beside.ZEROS, "variant 'default', 2 rows", 0.5, 1.0),))
    stage.backend.probes["a"] = probe
    put(stage, "a", padding="repeat")
    assert stage.registry.resolve("a").bundle.spec.coalescible
    with pytest.raises(Unsupported, match="with that padding the batches of the model are not safe"):
        stage.tuning.set_policy("a", lambda old: old.model_copy(update={"padding": "zeros"})).result(30)
    stage.tuning.set_policy("a", lambda old: old.model_copy(update={"weight": 2.0})).result(30)


def test_the_counters_of_weights_go_on_across_a_reload(make_stage):
    stage = make_stage(arena=10)
    put(stage, "a", "b")
    for name in "aba":
        stage.answer(name=name)
    assert (told(stage, "a").loads, told(stage, "a").evicts) == (2, 1)
    assert stage.weights.snapshot().demand_loads == 3
    put(stage, "a")
    assert (told(stage, "a").loads, told(stage, "a").evicts) == (2, 1)
    assert stage.weights.snapshot().demand_loads == 3
    assert stage.status().read().weight_hit_rate == 0.0
