"""How figures are shown: medians with their spread, progress aside on stderr, and a verdict as the last line."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from app.engine.status_reader import is_compiled


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and the range when there is more than one value."""
    middle = format(median(values), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def progress(text: str) -> None:
    """Say what is going on, apart from the results."""
    print(f"  … {text}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(seconds: float) -> Iterator[Callable[[str, float], None]]:
    """A bar over so many seconds of work, on a terminal's stderr; nothing elsewhere.

    It is told what goes on and how many seconds of the whole are done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _text, _done: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=seconds)
        yield lambda text, done: bar.update(task, description=text, completed=done)


def usable() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def load_average() -> float:
    """Of the last minute."""
    return round(os.getloadavg()[0], 1)


def machine() -> str:
    """How much this machine has to give just now: a busy one widens the spread."""
    code = "compiled server" if is_compiled() else "server in plain Python"
    return f"{usable()} cores, load average {load_average():.1f} before the run, {code}"


def verdict(met: bool, text: str) -> int:
    """Print the last line; the exit status."""
    print(f"{'ok' if met else 'MISSED'}: {text}", flush=True)
    return 0 if met else 1
