"""Rules of scheduling against each other: the server's scheduler on a virtual clock, with costs that are known."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from typing import TypeVar

from load_tests.arrivals import ARRIVALS
from load_tests.simulate.bound import most_in_time, r99_bound
from load_tests.simulate.capacity import r99
from load_tests.simulate.device import Noise
from load_tests.simulate.outcome import pooled
from load_tests.simulate.record import read_record
from load_tests.simulate.residency import RESIDENCIES
from load_tests.simulate.rules import AGAINST_VALUE, DEFAULTS, Rule, rule
from load_tests.simulate.run import Circumstances, answer, simulate
from load_tests.simulate.scenarios import SCENARIOS, SHARES, TIGHT, Scenario
from load_tests.simulate.tables import Result, as_json, details, rates, shares, weights, worst

T = TypeVar("T")

#: Which scenarios each command runs, with which rules when none is named, and at which multiples of the nominal rate.
_SHARE_RULES = ("fair", "fair sizing=fill", "fair admission=predict", "fifo", "edf")
_WEIGHT_RULES = tuple(f"{each} weights={kind}" for each in ("fair", "edf") for kind in RESIDENCIES)
_COMMANDS = {
    "table": (SCENARIOS, DEFAULTS, [0.5, 1.0, 1.5, 2.0]),
    "r99": (SCENARIOS, DEFAULTS, []),
    "value": (SCENARIOS, AGAINST_VALUE, [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]),
    "shares": (SHARES, _SHARE_RULES, [1.0]),
    "residency": (TIGHT, _WEIGHT_RULES, [0.7, 1.2]),
}

#: Those that find r99, and those that are drawn.
_RATED, _DRAWN = {"table", "r99", "value"}, {"table", "value", "residency"}


class Progress:
    """One line on a terminal's stderr that says how far a long run is; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._shown = sys.stderr.isatty()
        self._total = total
        self._done = 0
        self._begun = time.monotonic()

    def step(self, what: str) -> None:
        """Say what comes next."""
        if self._shown:
            seconds = time.monotonic() - self._begun
            line = f"[{self._done}/{self._total}] {seconds:.0f} s  {what}"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        self._done += 1

    def clear(self) -> None:
        """Make room for results."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def measure(scenario: Scenario, each: Rule, options: argparse.Namespace) -> Result:
    """One rule on one scenario, as far as was asked."""
    circumstances = Circumstances(options.noise, options.drag)
    result = Result(each)
    if options.what in _RATED:
        result.r99 = r99(scenario, each, options.seeds, circumstances)
    seeds = options.seeds[:1] if scenario.arrivals == "backlogged" else options.seeds
    for load in options.loads:
        outcomes = [simulate(scenario, each, scenario.rate * load, seed, circumstances) for seed in seeds]
        result.loads[load] = pooled(outcomes)
        result.worsts[load] = [each.worst for each in outcomes]
    return result


def replay(options: argparse.Namespace) -> int:
    """What each rule makes of the arrivals on record, at so many times their speed; 0, or 2 where there are none."""
    try:
        record = read_record(options.replay, options.status)
    except (OSError, ValueError, KeyError) as error:
        print(f"simulate: nothing to replay: {error}", file=sys.stderr)
        return 2
    print(f"{record.scenario.title} in {record.scenario.seconds:g} s; on the server: {_counted(record.outcomes)}")
    if record.left_out:
        print(f"left out, since no costs are known: {_counted(record.left_out)}")
    circumstances = Circumstances(options.noise, options.drag)
    for load in options.loads:
        scenario = replace(record.scenario, seconds=record.scenario.seconds / load)
        results = []
        for each in options.rules:
            outcome = answer(scenario, each, record.requests(load), options.seeds[0], circumstances)
            results.append(Result(each, loads={load: outcome}))
        print(f"\n{load:g} × as fast as they came\n{details(results, load)}", flush=True)
    return 0


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join([f"{count} {name}" for name, count in sorted(counts.items())])


def bounds(scenario: Scenario, options: argparse.Namespace) -> list[float]:
    """What no rule exceeds: r99, and goodput at each load."""
    seconds = scenario.seconds * len(options.seeds)
    goodputs = [
        sum([most_in_time(scenario, scenario.rate * load, seed) for seed in options.seeds]) / seconds
        for load in options.loads
    ]
    return [r99_bound(scenario, options.seeds), *goodputs]


def show(what: str, scenario: Scenario, results: Sequence[Result], bound: Sequence[float]) -> None:
    """Print the tables of one scenario; `bound` as `bounds` tells it, or empty."""
    if what == "shares":
        print(f"\n{scenario.name}: {scenario.title}\n{shares(scenario, results)}", flush=True)
        return
    if what == "residency":
        for load in results[0].loads:
            head = f"{scenario.name}: {scenario.title}, at {load:g} × what it bears"
            print(f"\n{head}\n{weights(results, load)}", flush=True)
        return
    head = f"{scenario.name}: {scenario.title}; nominal {scenario.rate:g} requests/s"
    print(f"\n{head}\n{rates(results, bound)}", flush=True)
    if what == "value" and len(scenario.models) > 1:
        print(f"\n{worst(results)}", flush=True)
    if what == "table":
        load = 1.0 if 1.0 in results[0].loads else max(results[0].loads)
        print(f"\n{scenario.name} at {scenario.rate * load:g} requests/s\n{details(results, load)}", flush=True)


def write(out: Path, what: str, scenarios: Sequence[Scenario], results: Mapping[str, Sequence[Result]]) -> None:
    """The JSON file, and the picture where goodput was measured at several loads."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"simulate_{what}.json"
    path.write_text(json.dumps(as_json(results), indent=1) + "\n", encoding="utf-8")
    print(f"\n{path}")
    if what in _DRAWN:
        try:
            from load_tests.simulate.picture import draw
        except ModuleNotFoundError:
            print("no picture: matplotlib is missing (pip install '.[load]')")
            return
        path = out / f"simulate_{what}.png"
        draw(path, scenarios, results)
        print(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 0."""
    options = _options(argv)
    if options.replay is not None:
        return replay(options)
    scenarios = options.scenarios
    if options.arrivals is not None:
        scenarios = [replace(each, arrivals=options.arrivals) for each in scenarios if each.arrivals != "backlogged"]
    if options.horizon_seconds is not None:
        scenarios = [replace(each, seconds=options.horizon_seconds) for each in scenarios]
    rules = options.rules
    if options.discipline:
        rules = [each for each in rules if each.discipline in options.discipline]
    progress = Progress(len(scenarios) * len(rules))
    results: dict[str, list[Result]] = {}
    with Pool(options.jobs) if options.jobs > 1 else ThreadPool(1) as pool:
        for scenario in scenarios:
            found = results[scenario.name] = []
            asked = [pool.apply_async(measure, (scenario, each, options)) for each in rules]
            for each, result in zip(rules, asked, strict=True):
                progress.step(f"{scenario.name}  {each.label}")
                found.append(result.get())
            bound = bounds(scenario, options) if options.what == "value" else ()
            progress.clear()
            show(options.what, scenario, found, bound)
    write(options.out, options.what, scenarios, results)
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    add = parser.add_argument
    add("what", nargs="?", choices=_COMMANDS, default="table")
    tables = f"of {', '.join(SCENARIOS)}; for shares {', '.join(SHARES)}; for residency {', '.join(TIGHT)}"
    add("--scenario", type=_list(str), help=tables)
    add("--discipline", type=_list(str), help="only rules of these disciplines, such as edf,fair")
    add("--rule", type=_rule, action="append", help="such as 'edf sizing=fill max_wait_ms=5'; may be repeated")
    add("--seeds", type=_list(int), default=[1, 2], help="of the arrivals (1,2)")
    add(
        "--loads",
        type=_list(float),
        help="multiples of the nominal rate (0.5,1,1.5,2, for value more; for residency 0.7,1.2)",
    )
    add("--horizon-seconds", type=float, help="how long requests arrive, instead of the scenario's own")
    add("--arrivals", choices=ARRIVALS, help="instead of the scenario's own")
    add(
        "--noise",
        type=_noise,
        metavar="S[,P]",
        help="lognormal spread, and part that takes 3 ×, instead of the scenario's",
    )
    add("--drag", type=float, default=1.0, help="so many times as long take executions during background loads")
    add("--replay", type=Path, metavar="FILE", help="arrivals that a server put on record, instead of scenarios")
    add("--status", type=Path, metavar="FILE", help="with --replay: what that server answered to /status")
    add("--jobs", type=int, default=1, help="processes that simulate")
    add("--out", type=Path, default=Path("load_tests/results"), help="where files go (load_tests/results)")
    options = parser.parse_args(argv)
    if (options.replay is None) != (options.status is None):
        parser.error("--replay and --status belong together")
    table, rules, loads = _COMMANDS[options.what]
    if options.replay is not None:
        loads = [1.0]
    if unknown := set(options.scenario or ()) - set(table):
        parser.error(f"no such scenario for {options.what}: {', '.join(sorted(unknown))}")
    options.scenarios = [table[name] for name in options.scenario or table]
    options.rules = options.rule or [rule(text) for text in rules]
    options.loads = loads if options.what in {"r99", "shares"} else options.loads or loads
    return options


def _list(of: Callable[[str], T]) -> Callable[[str], list[T]]:
    return lambda text: [of(each) for each in text.split(",")]


def _rule(text: str) -> Rule:
    try:
        return rule(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _noise(text: str) -> Noise:
    return Noise(*[float(each) for each in text.split(",")])


if __name__ == "__main__":
    sys.exit(main())
