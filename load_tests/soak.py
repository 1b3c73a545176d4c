"""`soak`: two million tiny requests; does the server remember them?

Memory, processor time per request and median latency of the last tenth are compared with those of the second: the first
fills what is kept on purpose, such as the ring of the latest requests.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from load_tests.client import ANSWERED, DUE, Seen
from load_tests.crew import usual_processes
from load_tests.figures import figures, outcomes
from load_tests.fleet import bundles, servers
from load_tests.measure import digests, observe, plans, requests_for, warm_up
from load_tests.observe import Observed
from load_tests.overload import flat, growth
from load_tests.report import machine, progress, progress_bar, verdict
from load_tests.results import Variant, machine_facts
from load_tests.run import RESULTS, finish
from load_tests.scenarios import WORKLOADS
from load_tests.workload import Arrivals

#: Longest run, in seconds: the number of requests ends it.
LONGEST_SECONDS = 3600.0

#: Requests per second that the progress is reckoned with.
_USUAL = 12_000


@dataclass(frozen=True)
class Tenth:
    """A part of the run: milliseconds of latency, server microseconds per request."""

    p50: float
    p99: float
    cpu_us: float


def tenths(seen: Sequence[Seen], observed: Observed, count: int = 10) -> list[Tenth]:
    """Equal parts of the time."""
    records, _ = outcomes(seen)
    answered = records[:, ANSWERED]
    latency = (answered - records[:, DUE]) * 1e3
    edges = np.linspace(0.0, answered.max(), count + 1)
    at = np.array([seconds for seconds, _, _, _ in observed.samples])
    at[-1] = max(answered.max(), at[-2:].min())  # it was taken when everything had been answered, and cost nothing more
    cpu = np.interp(edges, at, np.array([spent for _, _, _, spent in observed.samples]))
    found = []
    for place in range(count):
        here = (answered >= edges[place]) & (answered < edges[place + 1])
        p50, p99 = np.percentile(latency[here], [50, 99])
        spent = (cpu[place + 1] - cpu[place]) * 1e6 / here.sum()
        found.append(Tenth(float(p50), float(p99), float(spent)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print every tenth; 1 when the last is worse than it may be."""
    parser = argparse.ArgumentParser(
        prog="python -m load_tests soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument(
        "--limit", type=float, default=1.25, help="most ×, of CPU per request and median latency (1.25)"
    )
    parser.add_argument("--processes", type=int, default=usual_processes(), help="of clients")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    facts = machine_facts()
    workload = WORKLOADS["digits"].model_copy(
        update={
            "name": "soak",
            "description": f"{options.requests} tiny requests",
            "arrivals": Arrivals(connections=options.connections),
            "seconds": LONGEST_SECONDS,
        }
    )
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        directory = bundles(Path(folder), workload.models)
        with servers(directory, Path(folder, "cache"), list(workload.models), {"default": {}}) as running:
            server = running["default"]
            requests = requests_for(server, workload)
            warm_up(workload, server, requests, options.processes)
            each = plans(workload, server, requests, options.processes)
            each = [replace(plan, stop_after=options.requests // len(each)) for plan in each]
            progress(f"{options.requests} requests")
            with progress_bar(options.requests / _USUAL) as bar:
                seen, observed, seconds = observe(workload, server, each, lambda done: bar("requests", done))
            models = digests(server, list(workload.models))
    run = figures(workload, seconds, seen, observed)
    finish(workload, [Variant("default", {}, models, [run])], [], facts, options.out / "soak")
    parts = tenths(seen, observed)
    for place, part in enumerate(parts):
        print(f"tenth {place + 1:2}: p50 {part.p50:6.2f} ms, p99 {part.p99:6.2f} ms, CPU {part.cpu_us:5.1f} µs/request")
    before, after = growth([observed], 0.1)
    cpu, latency = parts[-1].cpu_us / parts[1].cpu_us, parts[-1].p50 / parts[1].p50
    met = flat(before, after) and max(cpu, latency) <= options.limit and run.ok == run.due
    text = (
        f"{run.ok} of {run.due} answered; the last tenth against the second: memory {after / before:.3f} × "
        f"({before / 1e6:.1f} to {after / 1e6:.1f} MB), CPU per request {cpu:.2f} ×, p50 {latency:.2f} × "
        f"(limit {options.limit:g})"
    )
    return verdict(met, text)


if __name__ == "__main__":
    sys.exit(main())
