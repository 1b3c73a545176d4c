"""Do busy hooks cost the device its time? Rows/s of one model while pure-Python hooks of another run without end.

The measured model runs on one thread for about a millisecond, and its requests bring several rows each, so that the
execution loop is what bounds the rate, not the work on the event loop. Its figure with idle hooks is compared with

- `threads`: the hooks run in the hook threads of the server, all of them busy;
- `isolated`: the same hooks, the same callers, and `hooks: {isolation: process}` in the manifest;
- `beside`: a process that has nothing to do with the server computes in Python: what the loss of a core costs.

All are done at the server's switch interval and at CPython's own, which is there to show the effect. The limit is for
`isolated`: it is what a bundle with such hooks should ask for.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from statistics import median

from load_tests.counters import counted
from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, end, inference_server
from load_tests.report import machine, progress, spread, verdict
from load_tests.wire import InferCall, infer_call, random_rows
from load_tests.wrk import background, drive

OURS_US, CPYTHON_US = 50, 5000

#: Where the hooks run, which is also the name of the bundle that has them, and what its manifest adds.
SETTINGS = {"threads": "", "isolated": 'format_version: "1"\nhooks: {isolation: process}\n'}

#: Callers per hook thread: none of them ever waits for a client.
CALLERS = 2

CONNECTIONS = 32

#: Longest time, in the median, that the device may be idle between two executions while work waits.
MOST_IDLE_US = 200

_MEASURED, _BUSY = (64, 2048, 1600, 10), (8, 8)

_HOOKS = """
def preprocess(inputs):
    total = 0
    for number in range({turns}):
        total += number & 7
    return inputs
"""

_SPIN = """
while True:
    pass
"""


@dataclass(frozen=True)
class Run:
    """One measurement: rates a second, `compute` seconds per execution, `gap` seconds between two.

    `idle` are the median seconds of that for which the device had nothing to do although work waited.
    """

    rows: float
    executions: float
    compute: float
    gap: float
    idle: float
    hooks: float
    errors: int


def measure(server: Server, call: InferCall, seconds: int) -> Run:
    """Drive the measured model and read what the server counted."""
    before, hooks_before = counted(server, "measured"), hooks_run(server)
    run = drive(server, call, CONNECTIONS, seconds)
    seen, hooks = counted(server, "measured") - before, hooks_run(server) - hooks_before
    executions = max(seen.dispatches, 1)
    gap = (run.seconds - seen.compute_seconds) / executions
    return Run(
        seen.rows / run.seconds,
        seen.dispatches / run.seconds,
        seen.compute_seconds / executions,
        gap,
        seen.median_gap,
        hooks / run.seconds,
        run.errors,
    )


def hooks_run(server: Server) -> int:
    """How many busy hooks have come to their end."""
    return sum(counted(server, name).requests for name in SETTINGS)


@contextmanager
def spinning() -> Iterator[None]:
    """A process that computes in Python without end."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        yield
    finally:
        end(process, SIGTERM)


def around(what: str, server: Server, callers: int) -> AbstractContextManager[None]:
    """What goes on during a measurement."""
    if what in SETTINGS:
        return background(server, infer_call(what, {"x": random_rows(1, _BUSY[0])}), callers)
    return spinning() if what == "beside" else nullcontext()


Runs = dict[tuple[int, str], list[Run]]


def compare(servers: dict[int, Server], call: InferCall, callers: int, rounds: int, seconds: int) -> Runs:
    """Every server idle, with busy hooks in threads and in a process, and beside a busy process, in turn."""
    runs: Runs = {}
    headings = ("rows/s", "runs/s", "run µs", "gap µs", "idle µs", "hooks/s")
    print(f"{'switch µs':>9} {'meanwhile':>9} {headings[0]:>8} " + " ".join(f"{each:>7}" for each in headings[1:]))
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        for interval, server in servers.items():
            for what in ("idle", *SETTINGS, "beside"):
                with around(what, server, callers):
                    run = measure(server, call, seconds)
                runs.setdefault((interval, what), []).append(run)
                print(
                    f"{interval:9} {what:>9} {run.rows:8.0f} {run.executions:7.0f} {run.compute * 1e6:7.0f} "
                    f"{run.gap * 1e6:7.0f} {run.idle * 1e6:7.0f} {run.hooks:7.1f}",
                    flush=True,
                )
    return runs


def ratios(runs: Runs, interval: int, what: str) -> list[float]:
    """Rows/s meanwhile over rows/s with idle hooks, round by round."""
    return [run.rows / idle.rows for run, idle in zip(runs[interval, what], runs[interval, "idle"], strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when busy hooks cost the measured model too much."""
    parser = argparse.ArgumentParser(prog="hooks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=4, help="length of one run")
    parser.add_argument("--rows", type=int, default=8, help="rows of each measured request")
    parser.add_argument("--hook-threads", type=int, default=2, help="threads of the hook pool, all of them busy")
    parser.add_argument("--turns", type=int, default=600_000, help="turns of the hook's loop, about 50 ns each")
    parser.add_argument("--limit", type=float, default=0.9, help="least rows/s with isolated hooks, × idle ones'")
    arguments = parser.parse_args(argv)
    print(machine())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        write_bundle(root / "bundles", "measured", mlp(_MEASURED))
        for name, manifest in SETTINGS.items():
            hooks = _HOOKS.format(turns=arguments.turns)
            write_bundle(root / "bundles", name, mlp(_BUSY), manifest, hooks)
        settings = {
            "CACHE_DIR": str(root / "cache"),
            "HOOK_THREADS": str(arguments.hook_threads),
            "RUNTIME_INTRA_OP_THREADS": "1",
            "SCHEDULER_SIZING": "fill",  # every execution is the same work
        }
        servers = {
            interval: stack.enter_context(
                inference_server(root / "bundles", SWITCH_INTERVAL_US=str(interval), **settings)
            )
            for interval in (OURS_US, CPYTHON_US)
        }
        call = infer_call("measured", {"x": random_rows(arguments.rows, _MEASURED[0])})
        runs = compare(servers, call, CALLERS * arguments.hook_threads, arguments.rounds, arguments.seconds)
    for interval in servers:
        threads, isolated, beside = (ratios(runs, interval, what) for what in (*SETTINGS, "beside"))
        shared = [a / b for a, b in zip(threads, beside, strict=True)]
        print(
            f"switch interval {interval} µs, × idle: {spread(isolated)} with busy hooks in a process, "
            f"{spread(threads)} in threads, {spread(beside)} beside a busy process, so {spread(shared)} for sharing "
            f"the interpreter"
        )
    errors = sum(run.errors for several in runs.values() for run in several)
    found = ratios(runs, OURS_US, "isolated")
    idle = {what: [run.idle * 1e6 for run in runs[OURS_US, what]] for what in ("idle", *SETTINGS)}
    gaps = ", ".join(f"{spread(each, '.0f')} ({what})" for what, each in idle.items())
    text = (
        f"{spread(found)} × the rows/s of idle hooks while isolated ones are busy (limit {arguments.limit:g}); device "
        f"idle between executions, median µs: {gaps} (limit {MOST_IDLE_US}, but for threads); {errors} errors"
    )
    waits = max(median(idle["idle"]), median(idle["isolated"])) <= MOST_IDLE_US
    return verdict(median(found) >= arguments.limit and waits and not errors, text)


if __name__ == "__main__":
    sys.exit(main())
