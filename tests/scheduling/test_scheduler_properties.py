"""The scheduler against a slow, obvious model of its queues, under random traffic that comes in bursts."""

from bisect import bisect_left
from collections import Counter
from itertools import takewhile
from math import inf
from typing import ClassVar

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import InvalidRequest, QueueFull
from app.domain.model import MergeKey
from app.scheduling.coalescing import plan_batch
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from tests.builders import request, spec
from tests.scheduling.simulation import PATIENT, push, scheduler, seed

DEPTH = 6
KEYS = (MergeKey("default"), MergeKey("default", (7,)))
SPECS = {
    "a": spec("a", sizes=(1, 2, 4)),
    "b": spec("b", sizes=(2, 4), max_batch_size=3),
    "c": spec("c", batching=False),
}
MODELS = st.sampled_from(sorted(SPECS))
POLICIES = st.builds(
    ModelPolicy,
    weight=st.sampled_from([1.0, 3.0]),
    max_batch_size=st.sampled_from([None, None, 1, 2]),
    sizing=st.sampled_from([None, "fill"]),
    max_wait_ms=st.sampled_from([0, 0, 50]),
    reserve_ms=st.sampled_from([None, None, 20]),
)


class Obvious:
    """The queues of one model as three plain lists."""

    def __init__(self, policy):
        self.policy = policy
        self.weights = "resident"
        self.retries = []
        self.committed = []
        self.ordinary = []

    def queued(self):
        return [one for part in self.retries for one in part] + self.committed + self.ordinary

    def remove(self, gone):
        for part in (*self.retries, self.committed, self.ordinary):
            part[:] = [one for one in part if one not in gone]
        self.retries = [part for part in self.retries if part]

    def has_committed(self):
        return any(one.committed for one in self.queued())

    def contends(self):
        """Whether it must be served now: work, weights at hand, and no window to wait in."""
        return (
            bool(self.queued()) and self.weights != "loading" and (not self.policy.max_wait_ms or self.has_committed())
        )


class SchedulerMachine(RuleBasedStateMachine):
    reached: ClassVar[Counter[str]] = Counter()
    """How often the traffic led to what, over all runs: a rule that is never reached is not tested."""

    @initialize(
        discipline=st.sampled_from(["fair", "fifo", "edf", "edf"]),
        sizing=st.sampled_from(["fill", "cost", "value"]),
        cost=st.sampled_from([None, 0.01, 0.1]),
    )
    def start(self, discipline, sizing, cost):
        config = SchedulerConfig(discipline=discipline, sizing=sizing, max_queue_depth=DEPTH, admission="off")
        self.discipline = discipline
        self.sizing = sizing
        self.made: Scheduler[QueuedRequest] = Scheduler(config)
        self.now = 100.0
        self.models = {}
        self.left = set()
        self.loads = {}
        for name in SPECS:
            self.add(name, ModelPolicy())
            if cost is not None:
                seed(self.made, name, dict.fromkeys((1, 2, 4), cost))

    def add(self, name, policy):
        self.made.add_model(name, SPECS[name], policy)
        self.models[name] = Obvious(policy)

    def leave(self, gone):
        """Each request leaves exactly once."""
        assert len(set(gone)) == len(gone)
        assert not self.left & set(gone)
        self.left |= set(gone)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 2.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(
        name=st.sampled_from("aaabc"),
        rows=st.lists(st.sampled_from([1, 1, 1, 2]), min_size=3, max_size=6),
        budget=st.sampled_from([inf, inf, 0.0, 0.03, 0.2]),
        committed=st.sampled_from([False, False, False, True]),
        whole=st.booleans(),
    )
    def burst(self, name, rows, budget, committed, whole):
        self.arrive(name, [(count, budget, KEYS[0]) for count in rows], committed, whole)

    @rule(
        name=MODELS,
        facts=st.lists(
            st.tuples(st.sampled_from([1, 2, 4, 5]), st.sampled_from([inf, 0.0, 0.03]), st.sampled_from(KEYS)),
            min_size=1,
            max_size=7,
        ),
        committed=st.booleans(),
        whole=st.booleans(),
    )
    def mixture(self, name, facts, committed, whole):
        self.arrive(name, facts, committed, whole)

    def arrive(self, name, facts, committed, whole):
        # The pieces of one request are due together.
        allowed = [facts[0][1] if whole else budget for _, budget, _ in facts]
        arrived = [
            request(name, rows, self.now, self.now + budget, committed, key)
            for (rows, _, key), budget in zip(facts, allowed, strict=True)
        ]
        for group in [arrived] if whole else [[one] for one in arrived]:
            self.enqueue(self.models[name], group, committed)

    def enqueue(self, model, group, committed):
        room = (
            committed
            or len(model.ordinary) + sum(not one.committed for part in model.retries for one in part) + len(group)
            <= DEPTH
        )
        try:
            self.made.enqueue(group, self.now)
        except QueueFull:
            assert not room
            assert len(group) <= DEPTH
            self.reached["queue full"] += 1
        except InvalidRequest:
            assert len(group) > DEPTH
            assert not committed
            self.reached["too many pieces"] += 1
        else:
            assert room
            (model.committed if committed else model.ordinary).extend(group)

    @rule(pick=st.randoms(use_true_random=False))
    def callers_leave(self, pick):
        queued = [one for model in self.models.values() for one in model.queued()]
        gone = [one for one in queued if pick.random() < 0.3]
        strangers = sorted(self.left, key=id)[:2]
        assert list(self.made.withdraw(gone + strangers, self.now)) == gone
        self.leave(gone)
        self.reached["withdrawn"] += len(gone)
        for model in self.models.values():
            model.remove(gone)

    @rule(name=MODELS, policy=POLICIES)
    def policy_changes(self, name, policy):
        self.made.set_policy(name, policy)
        self.models[name].policy = policy

    @rule(name=MODELS, weights=st.sampled_from(["resident", "resident", "resident", "loading", "cold"]))
    def weights_move(self, name, weights):
        self.made.set_weights(name, weights)
        self.models[name].weights = weights

    @rule(name=MODELS, seconds=st.sampled_from([0.01, 0.1]))
    def weights_are_loaded(self, name, seconds):
        self.made.record_load(name, seconds, self.now)

    @rule(name=MODELS, policy=POLICIES)
    def model_is_replaced(self, name, policy):
        orphans = self.made.remove_model(name)
        assert list(orphans) == self.models[name].queued()
        self.leave(orphans)
        self.reached["orphaned"] += len(orphans)
        self.add(name, policy)

    @precondition(lambda self: any(model.queued() for model in self.models.values()))
    @rule(fails=st.sampled_from([False, False, False, True]), spent=st.sampled_from([0.0, 0.01, 0.05]))
    def decide(self, fails, spent):
        self.turn(fails, spent)

    @rule(name=st.sampled_from("ab"), count=st.integers(2, 4), failures=st.integers(1, 4))
    def some_fail_together(self, name, count, failures):
        """A burst, and then failures one after another: halves of halves."""
        self.arrive(name, [(1, inf, KEYS[0])] * count, committed=False, whole=False)
        for _ in range(failures):
            self.turn(fails=True, spent=0.01)

    @rule(name=MODELS, budget=st.sampled_from([0.01, 0.03, 0.2]), late=st.sampled_from([0.01, 0.02, 0.5]))
    def some_come_too_late(self, name, budget, late):
        """Deadlines that pass, or that the learned cost makes hopeless."""
        self.arrive(name, [(1, budget, KEYS[0])] * 2, committed=False, whole=True)
        self.now += late
        self.turn(fails=False, spent=0.0)

    @precondition(lambda self: any(model.queued() for model in self.models.values()))
    @rule()
    def run_dry(self):
        """Decide until nothing is dispatched: what is left then waits for something."""
        while self.turn(fails=False, spent=0.01):
            pass
        assert not any(model.contends() for model in self.models.values())

    def turn(self, fails, spent):
        decision = self.made.next_decision(self.now)
        self.check_expired(decision.expired)
        dispatch = decision.dispatch
        if dispatch is None:
            assert not any(model.contends() for model in self.models.values())
            assert decision.wake_at > self.now
            self.reached["waited"] += decision.wake_at < inf
            self.check_wake(decision.wake_at)
            return False
        assert decision.wake_at == self.now
        model = self.models[dispatch.model_id]
        self.check_dispatch(dispatch, model)
        self.check_order(dispatch, model)
        taken = list(dispatch.requests)
        model.remove(taken)
        self.now += spent
        if fails:
            failed = self.made.retry(dispatch, taken, spent, self.now)
            self.leave(failed)
            again = [one for one in taken if one not in failed]
            middle = (len(again) + 1) // 2
            model.retries[:0] = [part for part in (again[:middle], again[middle:]) if part]
            self.reached["halved" if again else "failed"] += 1
            event("a dispatch failed" if again else "a culprit failed")
        else:
            self.leave(taken)
            self.made.record(dispatch, spent, self.now)
        return True

    def check_expired(self, expired):
        for model in self.models.values():
            mine = [one for one in expired if one in model.queued()]
            for one in mine:
                assert one.due <= self.now or not one.committed
                self.reached["expired" if one.due <= self.now else "shed"] += 1
            model.remove(mine)
            assert all(one.due > self.now for one in model.queued())
        assert all(not one.queued for one in expired)
        self.leave(expired)

    def check_dispatch(self, dispatch, model):
        taken = list(dispatch.requests)
        count = len(taken)
        retried = bool(model.retries)
        assert taken == (model.retries[0] if retried else (model.committed + model.ordinary)[:count])
        assert len({one.merge_key for one in taken}) == 1
        assert all(self.now < one.due <= one.deadline for one in taken)
        assert dispatch.rows == sum(one.rows for one in taken)
        assert dispatch.variant == "default"
        sizes = SPECS[dispatch.model_id].sizes("default")
        if not sizes or dispatch.rows > sizes[-1]:
            assert count == 1
            assert dispatch.size == dispatch.rows
        else:
            assert dispatch.size == sizes[bisect_left(sizes, dispatch.rows)]
        caps = [cap for cap in (SPECS[dispatch.model_id].max_batch_size, model.policy.max_batch_size) if cap]
        assert count == 1 or retried or all(dispatch.rows <= cap for cap in caps)
        if (model.policy.sizing or self.sizing) == "fill" and sizes and not retried and taken[0].due == inf:
            run = list(takewhile(lambda one: one.merge_key == taken[0].merge_key, model.committed + model.ordinary))
            assert (count, dispatch.size) == plan_batch([one.rows for one in run], sizes, cap=min(caps, default=None))[
                :2
            ]
        self.reached["coalesced"] += count > 1 and not retried
        self.reached["half run"] += retried
        self.reached["committed"] += taken[0].committed
        self.reached["alone above every size"] += bool(sizes) and dispatch.rows > sizes[-1]
        event(f"{count} merged")

    def check_order(self, dispatch, model):
        assert model.weights != "loading"
        ready = [each for each in self.models.values() if each.contends()]
        if any(each.has_committed() for each in ready):
            assert model.has_committed()
        elif self.discipline == "fifo" and self.sizing != "value":  # where some stand back
            assert all(each.policy.max_wait_ms or front(model).enqueued_at <= front(each).enqueued_at for each in ready)

    def check_wake(self, wake_at):
        for model in self.models.values():
            queued = model.queued()
            if queued:
                assert wake_at <= min(one.due for one in queued)
            if queued and model.weights != "loading":
                assert wake_at <= front(model).enqueued_at + model.policy.max_wait_ms / 1e3 + 1e-9

    @invariant()
    def depths_agree(self):
        if not hasattr(self, "made"):
            return
        stats = self.made.stats(self.now)
        for name, model in self.models.items():
            assert stats.models[name].queue_depth == len(model.queued())
            assert all(one.queued for one in model.queued())
            assert len(model.ordinary) <= DEPTH
        assert stats.queue_depth == sum(len(model.queued()) for model in self.models.values())


def front(model):
    return model.queued()[0]


#: What the traffic of the machine must lead to, again and again.
REACHED = (
    "coalesced", "expired", "queue full", "too many pieces", "committed", "shed", "halved", "half run", "failed",
    "withdrawn", "orphaned", "waited", "alone above every size",
)  # fmt: skip


@pytest.mark.hypothesis
def test_the_scheduler_agrees_with_the_obvious_model_and_reaches_every_rule():
    SchedulerMachine.reached.clear()
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(PATIENT, max_examples=400, stateful_step_count=50),
    )
    rare = {what: SchedulerMachine.reached[what] for what in REACHED if SchedulerMachine.reached[what] < 10}
    assert not rare


ARRIVALS = st.lists(st.tuples(MODELS, st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=12)


@PATIENT
@given(ARRIVALS, st.sampled_from([inf, 50.0]))
def test_edf_with_equal_deadlines_dispatches_exactly_as_fifo(arrivals, deadline):
    runs = []
    for discipline in ("fifo", "edf"):
        made = scheduler(*SPECS.values(), discipline=discipline)
        order = {}
        for index, (name, second, rows) in enumerate(sorted(arrivals, key=lambda arrival: arrival[1])):
            (one,) = push(made, request(name, rows, float(second), deadline), now=float(second))
            order[one] = index
        run = []
        while dispatch := made.next_decision(9.0).dispatch:
            run.append((dispatch.model_id, dispatch.size, [order[one] for one in dispatch.requests]))
        runs.append(run)
    assert runs[0] == runs[1]


@PATIENT
@given(
    st.dictionaries(
        st.sampled_from("pqrs"), st.tuples(st.sampled_from([1, 2, 5]), st.sampled_from([1, 2, 4])), min_size=2
    )
)
def test_fair_without_any_use_orders_by_share_per_cost(facts):
    made = scheduler(
        *(spec(name) for name in facts),
        policies={name: ModelPolicy(weight=weight) for name, (weight, _) in facts.items()},
        recency_penalty_cap=1.0,
    )
    for name, (_, cost) in facts.items():
        seed(made, name, {1: cost})
        push(made, request(name))
    ran = []
    while dispatch := made.next_decision(0.0).dispatch:
        ran.append(dispatch.model_id)
    assert ran == sorted(facts, key=lambda name: (-facts[name][0] / facts[name][1], name))
