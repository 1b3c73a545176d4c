"""How much faster is a start whose compile cache is filled? The example bundles and a generated model of 90 MB."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from load_tests.models import EXAMPLES, mlp, write_bundle
from load_tests.processes import inference_server
from load_tests.report import machine, progress, spread, verdict

WIDTHS = (512, 4096, 4096, 1024)

#: Longest warm start, as a part of the cold one.
LIMIT = 0.3


def start(bundles: Path, cache: Path) -> float:
    """Seconds from the start of the process until every model serves."""
    with inference_server(EXAMPLES, bundles, CACHE_DIR=str(cache)) as server:
        return server.started_in


def main(argv: Sequence[str] | None = None) -> int:
    """Start cold and warm in turn, each pair with a cache of its own; 1 when warm starts take too long."""
    parser = argparse.ArgumentParser(prog="startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args(argv)
    cold, warm = [], []
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model_file = write_bundle(root / "bundles", "wide", mlp(WIDTHS))
        print(f"{len(list(EXAMPLES.glob('*/manifest.yaml')))} example bundles and one of {_mb(model_file)} MB")
        for turn in range(arguments.rounds):
            progress(f"round {turn + 1} of {arguments.rounds}")
            cold.append(start(root / "bundles", root / f"cache{turn}"))
            warm.append(start(root / "bundles", root / f"cache{turn}"))
            print(f"cold {cold[-1]:.2f} s, warm {warm[-1]:.2f} s, ratio {warm[-1] / cold[-1]:.2f}", flush=True)
    print(f"medians: cold {median(cold):.2f} s, warm {median(warm):.2f} s")
    ratios = [b / a for a, b in zip(cold, warm, strict=True)]
    return verdict(median(ratios) <= LIMIT, f"a warm start takes {spread(ratios)} of a cold one (limit {LIMIT:g})")


def _mb(file: Path) -> int:
    return round(file.stat().st_size / 1e6)


if __name__ == "__main__":
    sys.exit(main())
