"""One dispatch on the device: whatever happens, every request is answered once."""

import concurrent.futures
import logging
from math import inf
from pathlib import Path

import numpy as np
import pytest

from app.backends.base import CacheEntry
from app.backends.fake import FakeBackend
from app.domain.config import RuntimeConfig
from app.domain.errors import ExecutionFailed, ModelNotFound, OutOfMemory
from app.domain.model import MergeKey
from app.domain.tensors import TensorSpec
from app.runtime.executor import Executor
from app.runtime.pending import PendingRequest
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Dispatch
from tests.builders import rows_of, spec


def pending(row, rows):
    """A queued request for rows that tell their number."""
    return PendingRequest(
        model_id="m",
        merge_key=MergeKey("default"),
        rows=rows,
        enqueued_at=0.0,
        deadline=inf,
        inputs={"x": rows_of(row, rows)},
        future=concurrent.futures.Future(),
    )


class Bench:
    """An executor with one fake model `m`, on a clock that only its executions move."""

    def __init__(self, model=None, padding="zeros"):
        self.now = 100.0
        self.backend = FakeBackend(cost=lambda variant, size: 0.25, spend=self.spend)
        self.weights = WeightCache(self.backend, RuntimeConfig())
        self.executor = Executor(self.weights, lambda: self.now)
        self.spec = model or spec()
        entry = CacheEntry(Path(__file__), "plain", 1)
        self.weights.add("m", entry, self.spec, None)
        self.weights.put("m", self.backend.prepare(entry, self.spec), 0.5, -1.0)
        self.executor.add_model("m", self.spec, padding)

    def spend(self, seconds):
        self.now += seconds

    def execute(self, *counts, size=4):
        """Run one dispatch of requests with so many rows."""
        requests = [pending(10 * index, rows) for index, rows in enumerate(counts)]
        return self.executor.execute(Dispatch("m", "default", size, sum(counts), tuple(requests), 0.0))


def test_every_request_gets_its_own_rows_and_the_facts_of_the_dispatch():
    parts, seconds, error, *device = Bench().execute(1, 2)
    assert (seconds, error, device) == (0.25, None, [100.0, 100.25, 0.0])
    np.testing.assert_array_equal(parts[0].outputs["y"], rows_of(0, 1))
    np.testing.assert_array_equal(parts[1].outputs["y"], rows_of(10, 2))
    facts = parts[0].facts
    assert parts[1].facts is facts
    assert (facts.started_at, facts.load_seconds, facts.compute_seconds) == (100.0, 0.0, 0.25)
    assert (facts.rows, facts.size) == (3, 4)


def test_a_model_that_does_not_coalesce_gets_its_outputs_whole():
    mean = TensorSpec("mean", "FP32", (), None)
    outcome = Bench(spec(sizes=(1, 2, 4), outputs=(mean,))).execute(3, size=3)
    assert outcome.seconds == 0.25
    assert outcome.parts[0].outputs["mean"].shape == ()


@pytest.mark.parametrize(
    ("of_bundle", "of_policy", "filled"),
    [("zeros", None, 0), ("repeat", None, 10), ("repeat", "zeros", 0), ("zeros", "repeat", 10)],
)
def test_partial_batches_are_filled_as_the_policy_says_or_else_the_bundle(of_bundle, of_policy, filled):
    bench = Bench(spec(padding=of_bundle), of_policy)
    seen = []
    bench.backend.on_run = lambda variant, size, inputs: seen.append(inputs["x"][:, 0].tolist())
    bench.execute(1, 1, size=4)
    assert seen == [[0, 10, filled, filled]]


@pytest.mark.parametrize(
    ("failure", "may_be_one_requests_fault"),
    [
        (ExecutionFailed("boom"), True),
        (ExecutionFailed("boom", reason="terminated"), False),
        (ExecutionFailed("boom", reason="device_lost"), False),
        (OutOfMemory("boom"), False),
    ],
)
def test_a_failure_is_told_with_what_it_took(failure, may_be_one_requests_fault, caplog):
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.backend.fail_next(failure)
    outcome = bench.execute(1, 2)
    assert (outcome.parts, outcome.seconds) == (None, 0.25)
    assert (type(outcome.error), outcome.error.code) == (type(failure), failure.code)
    # What a failed execution says may hold names and values: it is for the log.
    assert (outcome.error.message == "boom") is not isinstance(failure, ExecutionFailed)
    assert isinstance(failure, OutOfMemory) or "boom" in caplog.text
    assert outcome.may_be_one_requests_fault is may_be_one_requests_fault


def test_an_unexpected_failure_is_logged_and_its_details_are_kept_from_callers(caplog):
    bench = Bench()
    bench.backend.fail_next(RuntimeError("secret detail"))
    error = bench.execute(1).error
    assert isinstance(error, ExecutionFailed)
    assert "secret" not in error.message
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("reason", "level"), [("terminated", logging.INFO), ("execution_failed", logging.ERROR)], ids=["asked for", "not"]
)
def test_an_execution_that_was_asked_to_end_is_no_error_in_the_log(reason, level, caplog):
    bench = Bench()
    bench.backend.fail_next(ExecutionFailed("ended before it was done", reason=reason))
    with caplog.at_level(logging.INFO):
        bench.execute(1)
    assert [record.levelno for record in caplog.records] == [level]


def test_requests_of_a_model_that_was_unloaded_are_told_so():
    bench = Bench()
    bench.weights.drop("m")
    bench.executor.remove_model("m")
    outcome = bench.execute(1)
    assert isinstance(outcome.error, ModelNotFound)
    assert not outcome.may_be_one_requests_fault


def test_failures_of_one_kind_are_told_once_a_second_with_a_count_of_the_others(caplog):
    bench = Bench()

    def fail(failure, times=1):
        for _ in range(times):
            bench.backend.fail_next(failure)
            bench.execute(1)

    fail(ExecutionFailed("boom"), 4)  # a quarter of a second each
    fail(RuntimeError("unexpected"))
    bench.now += 1.0
    fail(ExecutionFailed("boom"))
    told = [(record.facts["code"], record.facts.get("suppressed")) for record in caplog.records]
    assert told == [("execution_failed", None), ("RuntimeError", None), ("execution_failed", 3)]
