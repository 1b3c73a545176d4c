"""Do concurrent one-row requests share executions? wrk on the tabular example bundle, the server's own counters."""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from load_tests.counters import Counted, counted
from load_tests.models import EXAMPLES
from load_tests.processes import inference_server
from load_tests.report import machine, spread, verdict
from load_tests.wire import infer_call, random_rows
from load_tests.wrk import Figures, drive

MODEL = "tabular"

#: Most executions per request.
LIMIT = 0.25

_BAR = 50


def histogram(times: Counter[int]) -> None:
    """Print how many executions there were at each batch size."""
    total, most = max(times.total(), 1), max(times.values(), default=1)
    print("batch size  executions")
    for size, count in sorted(times.items()):
        print(f"{size:10} {count:11} {100 * count / total:5.1f} % {'█' * round(_BAR * count / most)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the histogram of batch sizes; 1 when requests ran too much alone."""
    parser = argparse.ArgumentParser(prog="coalescing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="length of one run")
    parser.add_argument("--connections", type=int, default=64)
    arguments = parser.parse_args(argv)
    call = infer_call(MODEL, {"X": random_rows(1, 30)})
    print(machine())
    runs: list[tuple[Figures, Counted]] = []
    with (
        tempfile.TemporaryDirectory() as cache,
        inference_server(EXAMPLES, CACHE_DIR=cache, MODELS_INCLUDE=MODEL) as server,
    ):
        for _ in range(arguments.rounds):
            before = counted(server, MODEL)
            run = drive(server, call, arguments.connections, arguments.seconds)
            seen = counted(server, MODEL) - before
            print(
                f"{run.rate:8.0f} requests/s, p50 {run.p50 * 1e3:.2f} ms, {run.errors} errors: "
                f"{seen.requests} requests in {seen.dispatches} executions",
                flush=True,
            )
            runs.append((run, seen))
    histogram(sum((seen.batch_sizes for _, seen in runs), Counter[int]()))
    shares = [seen.dispatches / max(seen.requests, 1) for _, seen in runs]
    errors = sum(run.errors for run, _ in runs)
    rows = sum(seen.rows for _, seen in runs) / max(sum(seen.dispatches for _, seen in runs), 1)
    print(f"{rows:.1f} rows per execution on average")
    text = f"{spread(shares, '.3f')} executions per request at {arguments.connections} connections (limit {LIMIT:g})"
    return verdict(max(shares) <= LIMIT and not errors, f"{text}, {errors} errors")


if __name__ == "__main__":
    sys.exit(main())
