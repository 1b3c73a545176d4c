"""How figures are shown: medians with their spread, progress aside on stderr, and a verdict as the last line."""

import os
import sys
from collections.abc import Sequence
from statistics import median


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and the range when there is more than one value."""
    middle = format(median(values), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def progress(text: str) -> None:
    """Say what is going on, apart from the results."""
    print(f"  … {text}", file=sys.stderr, flush=True)


def machine() -> str:
    """How much this machine has to give just now: a busy one widens the spread."""
    return f"{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} before the run"


def verdict(met: bool, text: str) -> int:
    """Print the last line; the exit status."""
    print(f"{'ok' if met else 'MISSED'}: {text}", flush=True)
    return 0 if met else 1
