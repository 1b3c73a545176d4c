"""What the command line shows: tables, progress and complaints; plain lines where nobody looks at a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from app.api.status_client import Status
from app.runtime.registry import RESTING
from app.runtime.trial import Compiled, Execution

#: Characters that a line may have in a file, where nobody would unfold it.
_FILE_WIDTH = 1000

_UNITS = ("B", "kB", "MB", "GB", "TB")


def console(*, error: bool = False) -> Console:
    """Standard output or error, whatever stands for it now. Texts are shown as they are."""
    found = Console(stderr=error, markup=False, highlight=False, emoji=False)
    if not found.is_terminal:
        found.width = _FILE_WIDTH
    return found


def tell(kind: str, lines: Iterable[str]) -> None:
    """One line each on standard error, however long."""
    for line in lines:
        console(error=True).print(f"{kind}: {' '.join(line.split())}", soft_wrap=True)


def progress(verb: str, paths: Sequence[Path]) -> Iterator[Path]:
    """The paths, one by one, with a moving line that says which it is, or a line each."""
    shown = console(error=True)
    if not shown.is_terminal:
        for number, path in enumerate(paths, 1):
            shown.print(f"[{number}/{len(paths)}] {verb} {path.name}")
            yield path
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=shown, transient=True) as bar:
        task = bar.add_task(verb, total=len(paths))
        for path in paths:
            bar.update(task, description=f"{verb} {path.name}")
            yield path
            bar.advance(task)


def compiled_table(found: Iterable[Compiled]) -> Table:
    """A row for each bundle."""
    table = _table(["model", "form"], ["weights", "scratch"], ["batches"], ["time"], ["found"])
    for each in found:
        how = "compiled" if each.entry.made else "cached"
        table.add_row(*_facts(each), human_seconds(each.seconds), how if each.bundle.model_file is not None else "")
    return table


def check_table(found: Compiled, runs: Iterable[Execution]) -> Group:
    """A line on the bundle, then a row for each (variant, size); of a meta model only whom it calls."""
    name, form, weights, scratch, batches = _facts(found)
    if (calls := found.spec.meta_models) is not None:
        return Group(Text(f"{name}: a meta model, calls {', '.join(calls) or 'no other'}"))
    graphs = {(graph.variant, graph.size): graph.excuse or "replayed" for graph in found.entry.graphs}
    table = _table(["variant"], ["size", "per run", "per row", "memory"], *([["CUDA graph"]] if graphs else []))
    for run in runs:
        compiled = run.size if found.spec.sizes(run.variant) else 0
        size = str(compiled or "any")
        costs = [human_seconds(run.seconds), human_seconds(run.seconds / run.size), human_bytes(run.scratch_bytes)]
        cells = ["does not run", "", ""] if run.fault else costs
        table.add_row(run.variant, size, *cells, *([graphs.get((run.variant, compiled), "")] if graphs else []))
    return Group(Text(f"{name}: {form} weights of {weights}, scratch {scratch}, batches {batches}"), table)


def status_table(status: Status) -> Group:
    """The node in a line, a row for each model, and what is wrong; of several workers that of each."""
    if "workers" in status:
        parts = [(each["name"], each["status"]) for each in status["workers"]]
        return Group(
            *[Group(Text(name), Text("silent") if each is None else status_table(each)) for name, each in parts]
        )
    table = _table(
        ["model", "state"], ["weights"], ["on device"], ["queue", "answered", "failed", "dropped", "rows/run"],
        ["wait p50", "wait p99", "share", "target"],
    )  # fmt: skip
    for model in status["models"]:
        table.add_row(model["name"], model["state"], *_serving(model["serving"]))
    reasons = {model["name"]: model["reason"] for model in status["models"] if model["reason"] not in ("", *RESTING)}
    faults = [f"{name}: {reason}" for name, reason in reasons.items()]
    faults += [f"{path}: {fault}" for path, fault in status["problems"].items()]
    return Group(Text(_node(status)), table, *[Text(fault, style="red") for fault in faults])


def human_bytes(count: float) -> str:
    """A number of bytes in three digits and a unit."""
    for unit in _UNITS[:-1]:
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {_UNITS[-1]}"


def human_seconds(seconds: float) -> str:
    """A time in three digits and a unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}" if seconds < 999.5 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} µs"


def _table(*columns: Sequence[str]) -> Table:
    """Columns by heading: every second group holds numbers."""
    table = Table()
    for index, group in enumerate(columns):
        for heading in group:
            table.add_column(heading, justify="right" if index % 2 else "left", no_wrap=True)
    return table


def _facts(found: Compiled) -> list[str]:
    entry = found.entry
    numbers = [human_bytes(entry.weight_bytes), human_bytes(entry.scratch_bytes)]
    return [found.spec.name, entry.form, *numbers, found.verdict]


def _node(status: Status) -> str:
    limit = status["device_memory_limit_bytes"]
    memory, weights = human_bytes(status["device_memory_in_use_bytes"]), human_bytes(status["resident_weight_bytes"])
    if limit and status["backend"] == "cpu":  # what is in use is the process, of which the limit bounds a part
        weights += f" of {human_bytes(status['weight_pool_bytes'])} (budget {human_bytes(limit)})"
    elif limit:
        memory += f" of {human_bytes(limit)}"
    device = status["backend"] if status["device"] == status["backend"] else f"{status['backend']} {status['device']}"
    return ", ".join(
        [
            f"{device}{'' if status['alive'] else ' (not alive)'}{' (draining)' if status['draining'] else ''}",
            f"{status['discipline']}, {status['control_mode']}",
            f"queue {status['queue_depth']}",
            f"{'process' if status['backend'] == 'cpu' else 'memory'} {memory}, weights {weights}",
        ]
    )


def _serving(serving: Status | None) -> list[str]:
    if serving is None:
        return []
    dispatches = serving["dispatches"]
    return [
        human_bytes(serving["weight_bytes"]),
        "yes" if serving["resident"] else "no",
        str(serving["queue_depth"]),
        str(serving["ok"]),
        str(serving["failed"]),
        str(sum(serving["dropped"].values())),
        f"{serving['rows'] / dispatches:.2f}" if dispatches else "",
        human_seconds(serving["wait_p50"]),
        human_seconds(serving["wait_p99"]),
        f"{serving['share_actual']:.0%}",
        f"{serving['share_target']:.0%}",
    ]
