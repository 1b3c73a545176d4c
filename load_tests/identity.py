"""Net value with the parameters that make it `fill`, and `edf` with `fill`: the same decision in every random state.

There is no server: two schedulers get the same traffic, on a clock that is told, and every decision is compared.
"""

import argparse
import sys
from collections.abc import Sequence
from math import inf
from random import Random

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.model import MergeKey, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.scheduling.decision import Decision
from app.scheduling.queues import Weights
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from app.scheduling.value import AS_FILL
from load_tests.report import verdict

_SIZES = {"a": (1, 2, 4, 8), "b": (4, 8), "c": (1, 32), "d": ()}
_KEYS = (MergeKey("default"), MergeKey("default"), MergeKey("default", (7,)))
_TENSORS = (TensorSpec("x", "FP32", (-1, 8), 0),)


class Pair:
    """Two schedulers, and what is done to both."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.both = self.schedulers()
        self.now = 0.0
        self.numbers: dict[QueuedRequest, int] = {}
        """The number of a request, the same for both schedulers'."""
        self.queued: dict[int, tuple[QueuedRequest, ...]] = {}
        for name, sizes in _SIZES.items():
            policy = ModelPolicy(
                max_batch_size=self.random.choice([None, 6]), max_wait_ms=self.random.choice([0.0, 0.0, 5.0])
            )
            cost = self.random.uniform(1e-3, 1e-2)
            for each in self.both:
                variant = Variant("default", sizes, {})
                each.add_model(name, ModelSpec(name, _TENSORS, _TENSORS, (variant,), _TENSORS, _TENSORS), policy)
                for size in sizes or (1, 2, 4):
                    each.seed_cost(name, "default", size, cost * (1 + size / 8), 0.0)

    def schedulers(self) -> tuple[Scheduler[QueuedRequest], Scheduler[QueuedRequest]]:
        """The two that are compared."""
        return (
            Scheduler(SchedulerConfig(discipline="edf", sizing="fill", admission="off", max_queue_depth=64)),
            Scheduler(
                SchedulerConfig(discipline="edf", sizing="value", admission="off", max_queue_depth=64),
                rule=AS_FILL,
            ),
        )

    def decide(self, each: Scheduler[QueuedRequest]) -> Decision[QueuedRequest]:
        """The next decision of one of them."""
        return each.next_decision(self.now)

    def step(self) -> bool:
        """Let something arrive, leave or change, then decide; whether both decided the same."""
        random = self.random
        self.now += random.expovariate(200.0)
        for _ in range(random.randrange(6)):
            self._arrive(random.choice("aaabbcd"))
        self._disturb()
        decisions = [self.decide(each) for each in self.both]
        if self._told(decisions[0]) != self._told(decisions[1]):
            return False
        self._finish(decisions)
        return True

    def _disturb(self) -> None:
        """Perhaps somebody leaves, a policy changes, or weights move."""
        random = self.random
        if self.queued and random.random() < 0.2:
            gone = self.queued.pop(random.choice(list(self.queued)))
            for each, request in zip(self.both, gone, strict=True):
                each.withdraw([request], self.now)
        if random.random() < 0.05:
            name = random.choice("abcd")
            policy = ModelPolicy(
                sizing=random.choice([None, None, "fill", "cost"]),
                max_batch_size=random.choice([None, 6]),
                max_wait_ms=random.choice([0.0, 0.0, 5.0]),
            )
            for each in self.both:
                each.set_policy(name, policy)
        if random.random() < 0.1:
            name = random.choice("abcd")
            weights: Weights = "cold" if random.random() < 0.3 else "resident"
            for each in self.both:
                each.record_load(name, 5e-3, self.now)
                each.set_weights(name, weights)

    def _arrive(self, name: str) -> None:
        random = self.random
        if self.both[0].stats(self.now).models[name].queue_depth >= 64:
            return
        budget = random.choice([inf, random.uniform(0.0, 0.1), random.uniform(0.0, 0.1)])
        facts = random.choice(_KEYS), random.choice([1, 1, 1, 2, 5]), random.random() < 0.05
        number, made = len(self.numbers), tuple(self._request(name, budget, *facts) for _ in self.both)
        self.numbers.update(dict.fromkeys(made, number))
        for each, request in zip(self.both, made, strict=True):
            each.enqueue([request], self.now)
        self.queued[number] = made

    def _request(self, name: str, budget: float, key: MergeKey, rows: int, committed: bool) -> QueuedRequest:
        return QueuedRequest(
            model_id=name, merge_key=key, rows=rows, enqueued_at=self.now, deadline=self.now + budget,
            committed=committed,
        )  # fmt: skip

    def _finish(self, decisions: Sequence[Decision[QueuedRequest]]) -> None:
        """End what both run, after the same time, well or badly."""
        seconds, failed = self.random.uniform(1e-3, 1e-2), self.random.random() < 0.05
        dispatches = [each.dispatch for each in decisions]
        for request in (*decisions[0].expired, *(dispatches[0].requests if dispatches[0] else ())):
            self.queued.pop(self.numbers[request], None)
        if None in dispatches:
            return
        self.now += seconds
        for scheduler, dispatch in zip(self.both, dispatches, strict=True):
            assert dispatch is not None
            if failed:
                scheduler.retry(dispatch, dispatch.requests, seconds, self.now)
            else:
                scheduler.record(dispatch, seconds, self.now)

    def _told(self, decision: Decision[QueuedRequest]) -> object:
        dispatch = decision.dispatch
        ran = None
        if dispatch is not None:
            numbers = tuple(self.numbers[request] for request in dispatch.requests)
            ran = (dispatch.model_id, dispatch.size, dispatch.rows, numbers)
        return ran, sorted(self.numbers[request] for request in decision.expired), decision.wake_at


def differing(states: int, seed: int = 0, steps: int = 500, pairs: type[Pair] = Pair) -> int | None:
    """The first of so many states, in runs of `steps`, in which the two decide differently; None if none is."""
    for begun in range(0, states, steps):
        pair = pairs(seed + begun)
        for step in range(min(steps, states - begun)):
            if not pair.step():
                return begun + step
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; 1 where a decision differs."""
    parser = argparse.ArgumentParser(prog="identity", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    found = differing(arguments.states, arguments.seed)
    said = f"{arguments.states} random states, " + ("no difference" if found is None else f"first difference: {found}")
    return verdict(found is None, said)


if __name__ == "__main__":
    sys.exit(main())
