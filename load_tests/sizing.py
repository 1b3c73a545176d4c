"""Does `sizing: cost` find the batch size that serves most rows? A model whose larger batches are slower per row.

The same model, the same load, served under `cost` and under `fill` in turn. An execution takes 4 + size² units: 8 at
size 2, which is the best per row, and 1028 at size 32, eight times as much per row.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from load_tests.coalescing import histogram
from load_tests.counters import counted
from load_tests.models import write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, spread, verdict
from load_tests.treadmill import WIDTH, treadmill, turn_seconds
from load_tests.wire import InferCall, infer_call, random_rows
from load_tests.wrk import drive

MODEL = "quadratic"
CONNECTIONS = 64
SIZES = (1, 2, 4, 8, 16, 32)

#: Units of work of an execution at any size, and the seconds that one unit takes here.
BASE_UNITS = 4
UNIT_SECONDS = 0.0002

#: The sizes that `cost` is to use: the best one and its neighbours, which cost a quarter more.
GOOD = (1, 2, 4)

#: Least part of the rows that run where the rule says: every 64th execution under `cost` tries another size.
MOST = 0.8


@dataclass(frozen=True)
class Run:
    """Rows a second, executions by size, and requests that failed."""

    rows: float
    sizes: Counter[int]
    errors: int


def measure(server: Server, call: InferCall, seconds: int) -> Run:
    """Keep the model busy and read what the server counted."""
    before = counted(server, MODEL)
    run = drive(server, call, CONNECTIONS, seconds)
    seen = counted(server, MODEL) - before
    return Run(seen.rows / run.seconds, seen.batch_sizes, run.errors)


def part_at(runs: Sequence[Run], sizes: Sequence[int], of: Callable[[int], int]) -> float:
    """Which part of what executions take, `of` their size, those at these sizes take."""
    times = sum((run.sizes for run in runs), Counter[int]())
    return sum(of(size) * times[size] for size in sizes) / sum(of(size) * count for size, count in times.items())


def rows(size: int) -> int:
    """Rows of an execution, padding included."""
    return size


def units(size: int) -> int:
    """Units of work of an execution."""
    return BASE_UNITS + size * size


def main(argv: Sequence[str] | None = None) -> int:
    """Print both histograms and the ratio of rows/s; 1 when `cost` is not worth it, or does not do what it says."""
    parser = argparse.ArgumentParser(prog="sizing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=3, help="length of one run")
    parser.add_argument("--limit", type=float, default=2, help="least rows/s under cost, × those under fill")
    arguments = parser.parse_args(argv)
    print(machine())
    unit = round(UNIT_SECONDS / turn_seconds())
    call = infer_call(MODEL, {"x": random_rows(1, WIDTH)})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_bundle(root / "bundles", MODEL, treadmill(BASE_UNITS * unit, unit))
        settings = {"CACHE_DIR": str(root / "cache"), "RUNTIME_INTRA_OP_THREADS": "1"}
        with (
            inference_server(root / "bundles", SCHEDULER_SIZING="cost", **settings) as cost,
            inference_server(root / "bundles", SCHEDULER_SIZING="fill", **settings) as fill,
        ):
            pairs = []
            for _ in range(arguments.rounds):
                pairs.append((measure(cost, call, arguments.seconds), measure(fill, call, arguments.seconds)))
                print(
                    "rows/s: {:.0f} under cost, {:.0f} under fill".format(*(run.rows for run in pairs[-1])), flush=True
                )
    for name, runs in zip(("cost", "fill"), zip(*pairs, strict=True), strict=True):
        print(f"\nunder {name}, {spread([run.rows for run in runs], '.0f')} rows/s")
        histogram(sum((run.sizes for run in runs), Counter[int]()))
    costs, fills = zip(*pairs, strict=True)
    small, large = part_at(costs, GOOD, rows), part_at(fills, SIZES[-1:], rows)
    print(
        f"\ncost spent {1 - part_at(costs, GOOD, units):.0%} of the device time on other sizes, to go on knowing them"
    )
    found = [a.rows / b.rows for a, b in pairs]
    errors = sum(run.errors for pair in pairs for run in pair)
    text = (
        f"cost serves {spread(found)} × the rows/s of fill (limit {arguments.limit:g}), {small:.0%} of its rows at "
        f"sizes {GOOD}, fill {large:.0%} at {SIZES[-1]}, {errors} errors"
    )
    return verdict(median(found) >= arguments.limit and min(small, large) >= MOST and not errors, text)


if __name__ == "__main__":
    sys.exit(main())
