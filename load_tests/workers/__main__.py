"""Which way of giving requests to workers is right for which traffic: `python -m load_tests workers`."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.scaleout.demand import Counts, DemandBook, Meter, RepackTrigger
from app.scaleout.placement import Demand, Placement, Rules, place
from load_tests.workers.routers import BoundedHash, LeastOutstanding, Mode, Placed, RoundRobin, Router
from load_tests.workers.run import Outcome, Scenario, Watch, pooled, simulate

SCENARIOS: Mapping[str, Scenario] = {
    each.name: each
    for each in (
        Scenario("two", "2 models, all weights fit everywhere", models=2, skew=0.0),
        Scenario("mixed", "8 models, one ten times as dear, all weights fit everywhere", models=8, dear=("m03",)),
        Scenario("many", "32 models by Zipf's law, all weights fit everywhere", models=32, room=32),
        Scenario("tight", "32 models by Zipf's law, each worker holds 12 of them", models=32, room=12),
        Scenario("hot", "the same, a third of the requests for one", models=32, skew=1.3, room=12),
    )
}  # fmt: skip

#: Seconds of compute of all workers between two placements, and before the first.
REBALANCE, FIRST = 40.0, 4.0


class Packing:
    """The server's own placement, fed with what the simulated workers count."""

    def __init__(self, scenario: Scenario, mode: Mode, replicas: int, *, least: bool = False) -> None:
        self._workers = [f"w{number}" for number in range(scenario.workers)]
        self._budgets = dict.fromkeys(self._workers, scenario.room)
        self._rules = Rules(default_replicas=replicas)
        self._book, self._meter = DemandBook(REBALANCE), Meter()
        self._trigger = RepackTrigger(FIRST, REBALANCE)
        self._looked_at, self._computed = 0.0, 0.0
        self.repacks = 0
        models = dict.fromkeys(scenario.shares, Demand(0.0, 1))
        self._placement = self._place(models)
        self._meter.read({(worker, model): Counts(0, 0, 0.0) for worker in self._workers for model in models})
        quanta = dict.fromkeys(models, scenario.largest)
        self.router = Placed(self._workers, self._placement.homes, quanta, mode=mode, least=least)

    def watch(self, counts: Mapping[tuple[str, str], Counts], now: float) -> None:
        """As the controller does after each look."""
        computed = sum(each.compute for each in counts.values())
        spent, self._computed = computed - self._computed, computed
        if not self._trigger.spend(spent):
            return
        self._book.fold(self._meter.read(counts), now - self._looked_at)
        self._looked_at = now
        models = {model: Demand(self._book.load(model), each.nbytes) for model, each in self._placement.demands.items()}
        self._placement = self._place(models, self._placement)
        self.router.place(self._placement.homes)
        self.repacks += 1

    def _place(self, models: Mapping[str, Demand], previous: Placement | None = None) -> Placement:
        return place(models, self._budgets, self._rules, previous)


def _plain(kind: Callable[[Sequence[str]], Router]) -> Callable[[Scenario], tuple[Router, Packing | None]]:
    return lambda scenario: (kind([f"w{number}" for number in range(scenario.workers)]), None)


def _packed(mode: Mode, replicas: int) -> Callable[[Scenario], tuple[Router, Packing | None]]:
    def make(scenario: Scenario) -> tuple[Router, Packing | None]:
        packing = Packing(scenario, mode, replicas)
        return packing.router, packing

    return make


WAYS: Mapping[str, Callable[[Scenario], tuple[Router, Packing | None]]] = {
    "round_robin": _plain(RoundRobin),
    "least_outstanding": _plain(LeastOutstanding),
    "bounded hash": _plain(BoundedHash),
    "lpt_packing": _packed("spread", 1),
    "lpt_packing, 2 replicas, spread": _packed("spread", 2),
    "lpt_packing, 2 replicas, fill": _packed("inflight", 2),
    "lpt_packing, 2 replicas, run": _packed("run", 2),
}


def measure(scenario: Scenario, way: str, load: float, seeds: Sequence[int]) -> Outcome:
    """One way on one scenario."""
    outcomes = []
    for seed in seeds:
        router, packing = WAYS[way](scenario)
        watch: Watch | None = None if packing is None else packing.watch
        outcome = simulate(scenario, load, seed, router, watch)
        outcome.repacks = 0 if packing is None else packing.repacks
        outcomes.append(outcome)
    return pooled(outcomes)


def table(scenario: Scenario, load: float, seeds: Sequence[int]) -> str:
    """Every way, a line each."""
    lines = [f"{'':32} {'p50 ms':>8} {'p99 ms':>8} {'depth':>6} {'loads/s':>8} {'imbalance':>9} {'repacks':>8}"]
    for way in WAYS:
        found = measure(scenario, way, load, seeds)
        lines.append(
            f"{way:32} {found.quantile(0.5) * 1e3:8.0f} {found.quantile(0.99) * 1e3:8.0f} {found.depth:6.1f} "
            f"{found.loads / (scenario.seconds * len(seeds)):8.1f} {found.imbalance:9.2f} "
            f"{found.repacks / len(seeds):8.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 0."""
    parser = argparse.ArgumentParser(prog="workers", description=__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, nargs="+", default=list(SCENARIOS))
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.7], help="of what all bear in full batches")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, help="how long requests arrive (50)")
    options = parser.parse_args(argv)
    for name in options.scenario:
        scenario = SCENARIOS[name]
        if options.seconds is not None:
            scenario = replace(scenario, seconds=options.seconds)
        for load in options.loads:
            rate = scenario.peak * load
            print(f"\n{name}: {scenario.title}; {rate:.0f} requests/s, {load:g} × what {scenario.workers} workers bear")
            print(table(scenario, load, options.seeds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
