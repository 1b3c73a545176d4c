"""What serving costs a heavy model: rows/s over HTTP against ONNX Runtime called in a loop, at its best batch size."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from load_tests.cnn import IMAGE, resnet50
from load_tests.counters import counted
from load_tests.models import write_bundle
from load_tests.processes import inference_server
from load_tests.raw_loop import loop_in_child
from load_tests.report import machine, progress, spread, verdict
from load_tests.wire import infer_call, random_rows
from load_tests.wrk import Figures, drive

MODEL = "resnet50"
CONNECTIONS = 32
SIZES = (1, 2, 4, 8, 16)

#: Least rows/s, × those of the loop.
GOAL = 0.95

_MANIFEST = f"""format_version: "1"
batching: {{compiled_batch_sizes: {list(SIZES)}}}
"""


def compare(root: Path, rounds: int, seconds: int) -> int:
    """Loop and server in turn. The loop's best size is that of the best median over all rounds."""
    model_file = write_bundle(root / "bundles", MODEL, resnet50(), _MANIFEST)
    call = infer_call(MODEL, {"image": random_rows(1, *IMAGE)})
    loops: list[dict[int, float]] = []
    runs: list[Figures] = []
    with inference_server(root / "bundles", CACHE_DIR=str(root / "cache")) as server:
        for turn in range(rounds):
            progress(f"round {turn + 1} of {rounds}")
            loops.append(loop_in_child(model_file, SIZES, seconds * len(SIZES) / 3))
            print("loop:   " + ", ".join([f"{rate:.1f} rows/s at {size}" for size, rate in loops[-1].items()]))
            before = counted(server, MODEL)
            runs.append(drive(server, call, CONNECTIONS, seconds))
            seen = (counted(server, MODEL) - before).batch_sizes
            sizes = ", ".join([f"{times} × {size}" for size, times in sorted(seen.items())])
            print(f"server: {runs[-1].rate:.1f} rows/s, executions {sizes}", flush=True)
    best = max(SIZES, key=lambda size: median(rates[size] for rates in loops))
    ratios = [run.rate / rates[best] for run, rates in zip(runs, loops, strict=True)]
    errors = sum(run.errors for run in runs)
    text = f"{spread(ratios)} × the rows/s of a loop at batch size {best} (goal {GOAL:g}), {errors} errors"
    return verdict(median(ratios) >= GOAL and not errors, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure A B A B and print the ratio; 1 when it is below the goal."""
    parser = argparse.ArgumentParser(prog="compute_bound", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10, help="length of one run")
    arguments = parser.parse_args(argv)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        return compare(Path(folder), arguments.rounds, round(arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
