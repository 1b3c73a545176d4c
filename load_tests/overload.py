"""`overload`: bursts at twice what the server can bear, each request with a deadline.

What it can bear is measured with the same clients on the same cores, in closed loop, in turn with the bursts: each
round of bursts is set against what could be borne right before and right after it. Good: in the bursts as many answers
in time as it can bear at all, none of them late, the rest refused at once, and memory that stays where it is.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from load_tests.arrivals import Phase, phases
from load_tests.client import ANSWERED, DUE, OK, OUTCOME, Seen
from load_tests.crew import usual_processes
from load_tests.figures import Run, figures, outcomes
from load_tests.fleet import bundles, parse_settings, servers
from load_tests.measure import digests, measure, observe, plans, requests_for, warm_up
from load_tests.observe import Observed
from load_tests.processes import Server
from load_tests.report import machine, progress, progress_bar, spread, verdict
from load_tests.results import Variant, machine_facts
from load_tests.run import RESULTS, finish
from load_tests.workload import Arrivals, Call, Workload

MODEL = "work"

#: A burst, and the quiet between two, in seconds; what is asked in each, × the capacity.
BURST_SECONDS, QUIET_SECONDS = 4.0, 1.0
BURST, QUIET = 2.0, 0.5

#: By then the server remembers as many requests and dispatches as it ever will.
FULL = 0.5

#: Memory may grow by so much, × and in bytes, from there to the end.
GROWTH, GROWTH_BYTES = 1.03, 4_000_000


@dataclass(frozen=True)
class Bursts:
    """When there are bursts, in seconds since the start."""

    spans: tuple[tuple[float, float], ...]
    pieces: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """Of all bursts together."""
        return sum(end - begin for begin, end in self.spans)

    def hold(self, times: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which instants are in a burst."""
        found = np.zeros(len(times), np.bool_)
        for begin, end in self.spans:
            found |= (times >= begin) & (times < end)
        return found


def bursts(capacity: float, seconds: float) -> Bursts:
    """Quiet and bursts by turns."""
    spans: list[tuple[float, float]] = []
    pieces: list[Phase] = []
    at = 0.0
    while at < seconds:
        quiet = min(QUIET_SECONDS, seconds - at)
        burst = min(BURST_SECONDS, seconds - at - quiet)
        pieces += [(quiet, QUIET * capacity, QUIET * capacity), (burst, BURST * capacity, BURST * capacity)]
        spans.append((at + quiet, at + quiet + burst))
        at += quiet + burst
    return Bursts(tuple(spans), tuple(pieces))


def goodput(seen: Sequence[Seen], when: Bursts, deadline_ms: float) -> float:
    """Answers in time per second of burst."""
    records, names = outcomes(seen)
    in_time = (records[:, ANSWERED] - records[:, DUE]) * 1e3 <= deadline_ms
    ok = records[:, OUTCOME] == names.index(OK)
    return float((ok & in_time & when.hold(records[:, ANSWERED])).sum()) / when.seconds


def growth(rounds: Sequence[Observed], since: float) -> tuple[float, float]:
    """Memory (RSS, bytes) in the tenth of all that was observed that begins at the part `since`, and in the last tenth.

    Not PSS: the libraries' part of that rises when other processes that have mapped them end.
    """
    samples = [rss for each in rounds for _, rss, _, _ in each.samples]
    tenth, begin = max(1, len(samples) // 10), int(len(samples) * since)
    return median(samples[begin : begin + tenth] or samples), median(samples[-tenth:])


def flat(before: float, after: float) -> bool:
    """Whether memory stayed where it was."""
    return after <= max(before * GROWTH, before + GROWTH_BYTES)


class Overload:
    """One server, and what is asked of it."""

    def __init__(self, server: Server, workload: Workload, processes: int, margin_ms: float) -> None:
        self._server = server
        self._workload = workload
        self._processes = processes
        [call] = workload.calls
        told = call.model_copy(update={"deadline_ms": (call.deadline_ms or 0.0) - margin_ms})
        free = call.model_copy(update={"deadline_ms": None})
        self._requests = requests_for(server, workload.model_copy(update={"calls": (told,)}))
        self._free = requests_for(server, workload.model_copy(update={"calls": (free,)}))
        self.capacities: list[float] = []

    def capacity(self, seconds: float) -> None:
        """Measure it once more: a closed loop without deadlines."""
        closed = self._workload.model_copy(update={"arrivals": Arrivals(connections=64), "seconds": seconds})
        if not self.capacities:
            progress("warming up")
            warm_up(closed, self._server, self._free, self._processes)
        progress("capacity")
        run = measure(closed, self._server, self._free, self._processes)
        self.capacities.append(run.requests_per_s)
        print(f"capacity {run.requests_per_s:.0f} requests/s; bounded by {run.bounded_by}", flush=True)

    def burst(self, capacity: float) -> tuple[list[Seen], Observed, Bursts]:
        """Bursts for as long as the workload lasts."""
        workload = self._workload
        when = bursts(capacity, workload.seconds)
        rng = np.random.default_rng(workload.seed)
        times = phases(when.pieces, rng)
        which = workload.mixture(len(times), rng)
        each = plans(workload, self._server, self._requests, self._processes)
        count = len(each)
        each = [replace(plan, times=times[place::count], which=which[place::count]) for place, plan in enumerate(each)]
        progress(f"bursts at {BURST:g} × {capacity:.0f} requests/s for {workload.seconds:g} s")
        with progress_bar(workload.seconds) as bar:
            seen, observed, _ = observe(workload, self._server, each, lambda seconds: bar("bursts", seconds))
        return seen, observed, when


def judge(runs: Sequence[Run], parts: Sequence[float], memory: tuple[float, float], options: argparse.Namespace) -> int:
    """Print what was seen; `parts` of the capacity were answered in time, by round. The exit status."""
    p99, failed = [run.latency_ms.get("p99", inf) for run in runs], max(run.error_rate for run in runs)
    answered, late = sum(run.ok for run in runs), sum(run.late for run in runs)
    print(f"p99 of all answers {spread(p99, '.1f')} ms, {late} of {answered} late")
    print(f"memory {memory[0] / 1e6:.1f} MB halfway, {memory[1] / 1e6:.1f} MB in the last")
    for run in runs:
        if run.client["may_bound"]:
            print(f"the client may be what was measured: {run.client['known_by']}")
    met = median(parts) >= options.goal and median(p99) <= options.deadline_ms and flat(*memory) and not failed
    text = (
        f"{spread(parts, '.3f')} × the capacity answered in time (goal {options.goal:g}), p99 {median(p99):.1f} of "
        f"{options.deadline_ms:g} ms, memory {memory[1] / memory[0]:.3f} ×, {failed:.2%} failed"
    )
    return verdict(met, text)


def parser() -> argparse.ArgumentParser:
    """Of the options."""
    made = argparse.ArgumentParser(
        prog="python -m load_tests overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--rounds", type=int, default=6)
    add("--seconds", type=float, default=10, help="of bursts and quiet, each round (10)")
    add("--capacity-seconds", type=float, default=10, help="of each measurement of the capacity (10)")
    add("--deadline-ms", type=float, default=100)
    add("--margin-ms", type=float, default=5, help="of the deadline, kept from the server for the way (5)")
    add("--goal", type=float, default=0.95, help="least part of the capacity (0.95)")
    add("--source", default="treadmill 4 8", help="of the model, as in a scenario (treadmill 4 8)")
    add("--set", action="append", default=[], metavar="SETTING=V", help="a setting of the server")
    add("--processes", type=int, default=usual_processes(), help="of clients")
    add("--out", type=Path, default=RESULTS)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Capacity and bursts in turn; 1 when too little was answered in time."""
    options = parser().parse_args(argv)
    facts, settings = machine_facts(), parse_settings(" ".join(options.set))
    workload = Workload(
        name="overload",
        description=f"bursts at {BURST:g} × the capacity, {options.deadline_ms:g} ms allowed",
        models={MODEL: options.source},
        calls=(Call(model=MODEL, deadline_ms=options.deadline_ms),),
        arrivals=Arrivals(kind="poisson", rate=1, connections=1024),
        seconds=options.seconds,
        settings=settings,
    )
    print(machine())
    rounds: list[Observed] = []
    runs: list[Run] = []
    good: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        directory = bundles(Path(folder), workload.models)
        with servers(directory, Path(folder, "cache"), [MODEL], {"default": settings}) as running:
            server = running["default"]
            test = Overload(server, workload, options.processes, options.margin_ms)
            test.capacity(options.capacity_seconds)
            for _ in range(options.rounds):
                seen, observed, when = test.burst(test.capacities[-1])
                rounds.append(observed)
                runs.append(figures(workload, workload.seconds, seen, observed))
                good.append(goodput(seen, when, options.deadline_ms))
                print(f"in the bursts {good[-1]:.0f} answers in time per second", flush=True)
                test.capacity(options.capacity_seconds)
            models = digests(server, [MODEL])
    finish(workload, [Variant("default", settings, models, runs)], [], facts, options.out / "overload")
    parts = [2 * each / sum(around) for each, around in zip(good, pairwise(test.capacities), strict=True)]
    return judge(runs, parts, growth(rounds, FULL), options)


if __name__ == "__main__":
    sys.exit(main())
