"""The simulated machine: workers that merge what is queued, oldest model first, and fetch weights they do not hold."""

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from app.scaleout.demand import Counts
from load_tests.workers.routers import Router


@dataclass(frozen=True, slots=True)
class Scenario:
    """Models of one kind, popular by Zipf's law; each worker has room for the weights of `room` of them.

    An execution takes `fixed` + `per_row` × rows seconds, at most `largest` rows, and `load` before it where the
    weights are not there; of the `dear` models it takes ten times as long. `peak` requests a second are what all
    workers bear in full batches with all weights there. Nothing of the first `warm` seconds counts.
    """

    name: str
    title: str
    workers: int = 4
    models: int = 16
    skew: float = 0.9
    room: int = 16
    fixed: float = 0.004
    per_row: float = 0.001
    largest: int = 16
    load: float = 0.06
    dear: tuple[str, ...] = ()
    warm: float = 10.0
    seconds: float = 50.0

    @property
    def peak(self) -> float:
        """Requests a second."""
        shares = self.shares
        mean = sum(self.compute(model, self.largest) * share for model, share in shares.items())
        return self.workers * self.largest / mean

    def compute(self, model: str, rows: int) -> float:
        """Seconds of an execution."""
        return (self.fixed + self.per_row * rows) * (10 if model in self.dear else 1)

    @property
    def shares(self) -> dict[str, float]:
        """Model → its part of the requests."""
        weights = {f"m{number:02}": (number + 1.0) ** -self.skew for number in range(self.models)}
        total = sum(weights.values())
        return {model: weight / total for model, weight in weights.items()}


@dataclass
class Outcome:
    """What became of it. Seconds."""

    latencies: list[float] = field(default_factory=list)
    executions: int = 0
    executed: int = 0
    loads: int = 0
    busy: list[float] = field(default_factory=list)
    repacks: int = 0

    def quantile(self, part: float) -> float:
        """Of the latencies."""
        ordered = sorted(self.latencies)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)]

    @property
    def depth(self) -> float:
        """Requests in an execution."""
        return self.executed / self.executions

    @property
    def imbalance(self) -> float:
        """The busiest worker, × the mean."""
        return max(self.busy) / fmean(self.busy)


class Worker:
    """One device."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._queues: dict[str, deque[float]] = {}
        self._resident: OrderedDict[str, None] = OrderedDict()
        self.busy = 0.0
        self.running: tuple[str, list[float]] | None = None
        self.loads = 0
        self.counts: dict[str, list[float]] = {}

    def add(self, model: str, now: float) -> None:
        """Queue a request."""
        self._queues.setdefault(model, deque()).append(now)
        self.counts.setdefault(model, [0, 0, 0.0])[0] += 1

    def start(self) -> float | None:
        """Take the model whose oldest request is the oldest, as many as fit; how long it takes, None without work."""
        waiting = [(queue[0], model) for model, queue in self._queues.items() if queue]
        if not waiting:
            return None
        _, model = min(waiting)
        queue = self._queues[model]
        taken = [queue.popleft() for _ in range(min(len(queue), self._scenario.largest))]
        compute = self._scenario.compute(model, len(taken))
        seconds = compute + self._fetch(model)
        self.running = model, taken
        self.busy += seconds
        counted = self.counts[model]
        counted[1] += len(taken)
        counted[2] += compute
        return seconds

    def _fetch(self, model: str) -> float:
        if model in self._resident:
            self._resident.move_to_end(model)
            return 0.0
        while len(self._resident) >= self._scenario.room:
            self._resident.popitem(last=False)
        self._resident[model] = None
        self.loads += 1
        return self._scenario.load


#: Told what every worker counted, and the time; called after each execution.
Watch = Callable[[Mapping[tuple[str, str], Counts], float], None]


def arrivals(scenario: Scenario, load: float, seed: int) -> Iterator[tuple[float, str]]:
    """When which model is asked, at random."""
    dice = random.Random(seed)
    models, weights = zip(*scenario.shares.items(), strict=True)
    now = 0.0
    while (now := now + dice.expovariate(scenario.peak * load)) < scenario.seconds:
        yield now, dice.choices(models, weights)[0]


def simulate(scenario: Scenario, load: float, seed: int, router: Router, watch: Watch | None = None) -> Outcome:
    """Every request of the scenario through the router, until the last is answered."""
    workers = {f"w{number}": Worker(scenario) for number in range(scenario.workers)}
    outcome, coming = Outcome(), arrivals(scenario, load, seed)
    ends: list[tuple[float, str]] = []
    arriving = next(coming, None)

    def begin(name: str, now: float) -> None:
        if (seconds := workers[name].start()) is not None:
            heapq.heappush(ends, (now + seconds, name))
            outcome.executions += 1

    while arriving is not None or ends:
        if arriving is not None and _is_next(arriving, ends):
            now, model = arriving
            name = router.choose(model, 1)
            workers[name].add(model, now)
            if workers[name].running is None:
                begin(name, now)
            arriving = next(coming, None)
            continue
        now, name = heapq.heappop(ends)
        worker = workers[name]
        assert worker.running is not None
        model, taken = worker.running
        worker.running = None
        outcome.executed += len(taken)
        outcome.latencies += [now - asked for asked in taken if asked >= scenario.warm]
        for _ in taken:
            router.done(name, model, 1)
        if watch is not None:
            watch(_counts(workers), now)
        begin(name, now)
    outcome.busy = [worker.busy for worker in workers.values()]
    outcome.loads = sum(worker.loads for worker in workers.values())
    return outcome


def _is_next(arriving: tuple[float, str], ends: Sequence[tuple[float, str]]) -> bool:
    return not ends or arriving[0] <= ends[0][0]


def _counts(workers: Mapping[str, Worker]) -> dict[tuple[str, str], Counts]:
    return {
        (name, model): Counts(int(counted[0]), int(counted[1]), counted[2])
        for name, worker in workers.items()
        for model, counted in worker.counts.items()
    }


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Several seeds as one."""
    busy = [sum(each) for each in zip(*[outcome.busy for outcome in outcomes], strict=True)]
    return Outcome(
        [latency for outcome in outcomes for latency in outcome.latencies],
        sum(outcome.executions for outcome in outcomes),
        sum(outcome.executed for outcome in outcomes),
        sum(outcome.loads for outcome in outcomes),
        busy,
        sum(outcome.repacks for outcome in outcomes),
    )
