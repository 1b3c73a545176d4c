"""What a decision costs the scheduler: a thousand models registered, ten of them active, a thousand requests queued.

The same by value, with twenty active models whose deadlines press. And what it costs to queue a request and to withdraw
one, from queues of ten to ten thousand. There is no server: the scheduler alone, on a clock that is told.
"""

import argparse
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import inf
from statistics import median
from time import perf_counter_ns
from typing import Literal

import numpy as np

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import DeadlineInfeasible
from app.domain.model import MergeKey, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from load_tests.report import machine, spread, verdict

REGISTERED, ACTIVE, QUEUED = 1000, 10, 1000

SIZINGS: tuple[Literal["cost", "value"], ...] = ("cost", "value")

#: Active where deadlines press.
PRESSED = 20

DISCIPLINES: tuple[Literal["fair", "fifo", "edf"], ...] = ("fair", "fifo", "edf")

#: Largest compiled size. The first is the default, and judged; the other is more than one model has queued, so that
#: all of it is looked at, and a batch that is not full might wait.
LARGEST = (32, 128)

WAITS_MS = (0.0, 5.0)

DEPTHS = (10, 100, 1000, 10_000)

#: The latest deadline, in seconds: no request expires here.
FAR = 1000.0

_KEY = MergeKey("default")

_TENSORS = (TensorSpec("x", "FP32", (-1, 8), 0),)


def scheduler_with(
    models: int,
    discipline: Literal["fair", "fifo", "edf"] = "fair",
    largest: int = LARGEST[0],
    wait_ms: float = 0.0,
    config: SchedulerConfig | None = None,
) -> Scheduler[QueuedRequest]:
    """So many registered models with known costs, none of them with work."""
    config = config or SchedulerConfig(discipline=discipline, max_queue_depth=2 * max(DEPTHS))
    scheduler = Scheduler[QueuedRequest](config)
    sizes = tuple(size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size <= largest)
    for number in range(models):
        name = f"model-{number}"
        spec = ModelSpec(name, _TENSORS, _TENSORS, (Variant("default", sizes, {}),), _TENSORS, _TENSORS)
        scheduler.add_model(name, spec, ModelPolicy(weight=1.0 + number % 3, max_wait_ms=wait_ms))
        for size in sizes:
            scheduler.seed_cost(name, "default", size, 1e-3 + size * 1e-4, 0.0)
    return scheduler


def request(model: int, now: float, deadline: float = inf) -> QueuedRequest:
    """A request of one row."""
    return QueuedRequest(model_id=f"model-{model}", merge_key=_KEY, rows=1, enqueued_at=now, deadline=deadline)


def decisions(scheduler: Scheduler[QueuedRequest], changing: bool, times: int) -> Iterator[int]:
    """Nanoseconds of one decision after the other; what each takes is queued again, and recorded as run.

    So one queue has changed when the next decision is due. With `changing` all have: each has lost one request that
    was withdrawn, and got another.
    """
    random, now = np.random.default_rng(0), 0.0
    waiting: dict[int, deque[QueuedRequest]] = {number: deque() for number in range(ACTIVE)}

    def queue(number: int) -> None:
        fresh = request(number, now, now + random.uniform(FAR / 2, FAR))
        waiting[number].append(fresh)
        scheduler.enqueue([fresh], now)

    for number in range(ACTIVE):
        for _ in range(QUEUED // ACTIVE):
            queue(number)
    for _ in range(times):
        now += 0.01
        for number in range(ACTIVE) if changing else ():
            scheduler.withdraw([waiting[number].pop()], now)
            queue(number)
        begun = perf_counter_ns()
        dispatch = scheduler.next_decision(now).dispatch
        yield perf_counter_ns() - begun
        assert dispatch is not None
        scheduler.record(dispatch, 1e-3, now)
        number = int(dispatch.model_id.removeprefix("model-"))
        for _ in dispatch.requests:
            waiting[number].popleft()
            queue(number)


def cost_of_decisions(times: int) -> list[float]:
    """Median microseconds in every situation that is judged; a line for each, and for the others."""
    print(f"{'discipline':>10} {'largest':>7} {'max_wait':>8} {'changed':>7} {'median µs':>9} {'p99 µs':>7}")
    medians = []
    for discipline, largest, wait_ms, changing in product(DISCIPLINES, LARGEST, WAITS_MS, (False, True)):
        scheduler = scheduler_with(REGISTERED, discipline, largest, wait_ms)
        gc.freeze()  # as the server does with what stands at start
        took = np.fromiter(decisions(scheduler, changing, times), np.int64) / 1e3
        middle, late = np.percentile(took, [50, 99])
        changed = ACTIVE if changing else 1
        print(f"{discipline:>10} {largest:7} {wait_ms:5g} ms {changed:7} {middle:9.1f} {late:7.1f}", flush=True)
        gc.unfreeze()
        if largest == LARGEST[0]:
            medians.append(float(middle))
    return medians


def pressed(discipline: Literal["fair", "fifo", "edf"], sizing: Literal["cost", "value"], times: int) -> list[float]:
    """Microseconds of decisions about twenty models, dear ones and cheap ones, with a thousand requests queued.

    What runs takes the time that was learned, and meanwhile as many come as leave, with the deadline of their model.
    """
    random, now = np.random.default_rng(0), 0.0
    took: list[float] = []
    config = SchedulerConfig(discipline=discipline, sizing=sizing, max_queue_depth=QUEUED)
    scheduler = scheduler_with(REGISTERED, config=config)
    # Lists: NumPy's scalars take several times as long to compare as the floats that a server has.
    costs = random.uniform(0.2, 5.0, PRESSED).tolist(), random.uniform(0.05, 1.0, PRESSED).tolist()
    for number, size in product(range(PRESSED), (1, 2, 4, 8, 16, 32)):
        for _ in range(30):
            scheduler.seed_cost(
                f"model-{number}", "default", size, (costs[0][number] + size * costs[1][number]) / 1e3, 0
            )
    budgets = random.uniform(0.7, 2.0, PRESSED).tolist()
    begun, queued = 0.0, 0
    while len(took) < times:
        missing = QUEUED - queued
        instants, numbers = np.linspace(begun, now, missing).tolist(), random.integers(0, PRESSED, missing).tolist()
        for at, number in zip(instants, numbers, strict=True):
            with suppress(DeadlineInfeasible):
                scheduler.enqueue([request(number, at, at + budgets[number])], at)
                queued += 1
        start = perf_counter_ns()
        decision = scheduler.next_decision(now)
        took.append((perf_counter_ns() - start) / 1e3)
        dispatch = decision.dispatch
        queued -= len(decision.expired)
        begun, now = now, now + 1e-3
        if dispatch is not None:
            number = int(dispatch.model_id.removeprefix("model-"))
            seconds = (costs[0][number] + dispatch.size * costs[1][number]) / 1e3
            now = begun + seconds
            scheduler.record(dispatch, seconds, now)
            queued -= len(dispatch.requests)
    return took


def cost_under_pressure(times: int) -> float:
    """A line for each discipline; the largest median by value, in microseconds, which is judged."""
    print(f"{'discipline':>10} {'sizing':>7} median µs, p99 µs; {PRESSED} models active, deadlines press")
    slowest = 0.0
    for discipline, sizing in product(DISCIPLINES, SIZINGS):
        middle, late = np.percentile(np.array(pressed(discipline, sizing, times)), [50, 99])
        print(f"{discipline:>10} {sizing:>7} {middle:9.1f} {late:7.1f}", flush=True)
        if sizing == "value":
            slowest = max(slowest, float(middle))
    return slowest


def per_operation(depth: int, deadlines: bool, times: int) -> tuple[float, float]:
    """Mean microseconds to queue a request and to withdraw one from the middle of a queue of this depth."""
    scheduler, random = scheduler_with(ACTIVE), np.random.default_rng(0)
    queued: list[QueuedRequest] = []

    def fresh() -> QueuedRequest:
        return request(0, 0.0, random.uniform(FAR / 2, FAR) if deadlines else inf)

    def timed(operation: Callable[[Sequence[QueuedRequest], float], object], operands: list[QueuedRequest]) -> int:
        begun = perf_counter_ns()
        for operand in operands:
            operation((operand,), 0.0)
        return perf_counter_ns() - begun

    for _ in range(depth):
        queued.append(fresh())
        scheduler.enqueue(queued[-1:], 0.0)
    into = out = 0
    burst = min(depth, 100)  # timed at once, so that reading the clock does not count
    for _ in range(times // burst):
        random.shuffle(queued)
        gone, queued = queued[:burst], [*queued[burst:], *[fresh() for _ in range(burst)]]
        out += timed(scheduler.withdraw, gone)
        into += timed(scheduler.enqueue, queued[-burst:])
    done = times // burst * burst
    return into / done / 1e3, out / done / 1e3


def cost_of_operations(times: int, rounds: int) -> float:
    """A line for each depth; by how much the dearest depth is dearer than the shallowest, at the worst."""
    print(f"{'deadlines':>10} {'depth':>7}   enqueue µs, withdraw µs")
    worst = 0.0
    for deadlines in (False, True):
        runs: dict[int, list[tuple[float, float]]] = {depth: [] for depth in DEPTHS}
        for _ in range(rounds):
            for depth, found in runs.items():
                found.append(per_operation(depth, deadlines, times))
        into, out = ({depth: [each[way] for each in found] for depth, found in runs.items()} for way in (0, 1))
        for depth in DEPTHS:
            print(f"{'yes' if deadlines else 'no':>10} {depth:7}   {spread(into[depth])}, {spread(out[depth])}")
        ratios = [max(map(median, way.values())) / median(way[DEPTHS[0]]) for way in (into, out)]
        print(f"{'':>18}   at most {ratios[0]:.2f} × and {ratios[1]:.2f} × those of {DEPTHS[0]}", flush=True)
        worst = max(worst, *ratios)
    return worst


def main(argv: Sequence[str] | None = None) -> int:
    """Print what each takes; 1 when a decision takes too long, or a deep queue costs more than a shallow one."""
    parser = argparse.ArgumentParser(prog="decisions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=2000, help="decisions in each situation")
    parser.add_argument("--limit", type=float, default=50, help="most microseconds of a median decision")
    parser.add_argument("--value-limit", type=float, default=100, help="the same where value decides")
    parser.add_argument("--flat", type=float, default=3, help="most × of an operation at any depth: caches are small")
    arguments = parser.parse_args(argv)
    print(machine())
    slowest = max(cost_of_decisions(arguments.times))
    valued = cost_under_pressure(arguments.times)
    ratio = cost_of_operations(20_000, arguments.rounds)
    text = (
        f"a decision takes {slowest:.1f} µs (limit {arguments.limit:g}), by value {valued:.1f} µs (limit "
        f"{arguments.value_limit:g}); queueing and withdrawing at any depth "
        f"{ratio:.2f} × as at {DEPTHS[0]} (limit {arguments.flat:g})"
    )
    return verdict(slowest <= arguments.limit and valued <= arguments.value_limit and ratio <= arguments.flat, text)


if __name__ == "__main__":
    sys.exit(main())
