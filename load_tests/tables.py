"""Results for the terminal: settings side by side, and what each was made of."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from load_tests.figures import Run
from load_tests.report import spread
from load_tests.results import Variant
from load_tests.workload import Workload

_UNKNOWN = "?"


def console() -> Console:
    """Wide enough for the tables where nobody looks: in logs and files."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=180)


def show(variants: Sequence[Variant], workload: Workload, loop: Sequence[Mapping[int, float]]) -> None:
    """Print everything; the first variant is what the others are compared with."""
    out = console()
    out.print(_overview(variants, workload))
    out.print(_server(variants))
    if any(run.stages_ms for variant in variants for run in variant.runs):
        out.print(_stages(variants))
    if len(workload.calls) > 1:
        out.print(_calls(variants))
    for variant in variants:
        print(f"{variant.label}: batch sizes {_sizes(variant)}")
    for variant in variants:
        last = variant.runs[-1]
        print(f"{variant.label}: bounded by {last.bounded_by}")
        mark = (
            "CLIENT MAY BE WHAT WAS MEASURED: " if any(run.client["may_bound"] for run in variant.runs) else "client: "
        )
        print(f"{variant.label}: {mark}{max(variant.runs, key=lambda run: run.client['busiest']).client['known_by']}")
    for line in ratios(variants, loop):
        print(line)


def ratios(variants: Sequence[Variant], loop: Sequence[Mapping[int, float]]) -> list[str]:
    """Each variant against the first, round by round; and against the raw loop at its best size."""
    lines = []
    first = variants[0]
    for variant in variants[1:]:
        pairs = list(zip(variant.runs, first.runs, strict=False))
        parts = [f"requests/s {_ratio(pairs, lambda run: run.requests_per_s)}"]
        parts.append(f"p50 {_ratio(pairs, lambda run: run.latency_ms.get('p50', 0.0))}")
        parts.append(f"p99 {_ratio(pairs, lambda run: run.latency_ms.get('p99', 0.0))}")
        parts.append(f"CPU per request {_ratio(pairs, lambda run: run.server_cpu_us or 0.0)}")
        lines.append(f"{variant.label} / {first.label}: {', '.join(parts)}")
    if loop:
        best = max(loop[0], key=lambda size: median(rates[size] for rates in loop))
        for variant in variants:
            against = [run.rows_per_s / rates[best] for run, rates in zip(variant.runs, loop, strict=False)]
            lines.append(f"{variant.label} / ONNX Runtime in a loop at batch size {best}: rows/s {spread(against)}")
    return lines


def _ratio(pairs: Sequence[tuple[Run, Run]], figure: Callable[[Run], float]) -> str:
    values = [figure(ours) / figure(theirs) for ours, theirs in pairs if figure(theirs)]
    return f"{spread(values)} ×" if values else _UNKNOWN


def _overview(variants: Sequence[Variant], workload: Workload) -> Table:
    arrivals = workload.arrivals
    when = f"{arrivals.most} connections" if arrivals.rate is None else f"{arrivals.kind} {arrivals.rate:g}/s"
    table = _table(
        f"{workload.name}: {when}, {len(variants[0].runs)} × {workload.seconds:g} s; milliseconds from when due",
        ["setting", "requests/s", "rows/s", "p50", "p95", "p99", "in time/s", "missed", "refused or failed", "errors"],
    )
    for variant in variants:
        runs = variant.runs
        codes: dict[str, int] = {}
        for run in runs:
            for code, count in run.rejected.items():
                codes[code] = codes.get(code, 0) + count
        table.add_row(
            variant.label,
            spread([run.requests_per_s for run in runs], ".0f"),
            spread([run.rows_per_s for run in runs], ".0f"),
            *[f"{variant.tail(each):.2f}" for each in ("p50", "p95", "p99")],
            f"{variant.middle('in_time_per_s'):.0f}",
            f"{variant.middle('miss_rate'):.2%}",
            ", ".join([f"{count} {code}" for code, count in codes.items()]) or "none",
            f"{variant.middle('error_rate'):.2%}",
        )
    return table


def _server(variants: Sequence[Variant]) -> Table:
    table = _table(
        "the server",
        [
            "setting",
            "rows/execution",
            "device busy",
            "CPU µs/request",
            "busiest thread",
            "RSS MB",
            "PSS MB",
            "others, cores",
        ],
    )
    for variant in variants:
        runs = variant.runs
        table.add_row(
            variant.label,
            _known([run.rows_per_execution for run in runs], ".1f"),
            _known([run.device_busy for run in runs], ".0%"),
            _known([run.server_cpu_us for run in runs], ".1f"),
            _known([run.server_busiest_thread for run in runs], ".0%"),
            _known([run.rss_max and run.rss_max / 1e6 for run in runs], ".1f"),
            _known([run.pss_max and run.pss_max / 1e6 for run in runs], ".1f"),
            _known([run.others_cores for run in runs], ".2f"),
        )
    return table


def _stages(variants: Sequence[Variant]) -> Table:
    names = list(dict.fromkeys(name for variant in variants for run in variant.runs for name in run.stages_ms))
    table = _table("stages, from Server-Timing: milliseconds, p50 / p99", ["setting", *names])
    for variant in variants:
        cells = []
        for name in names:
            found = [run.stages_ms[name] for run in variant.runs if run.stages_ms.get(name)]
            each = [median(stage[quantile] for stage in found) if found else 0.0 for quantile in ("p50", "p99")]
            cells.append(f"{each[0]:.3f} / {each[1]:.3f}" if any(each) else _UNKNOWN)
        table.add_row(variant.label, *cells)
    return table


def _calls(variants: Sequence[Variant]) -> Table:
    names = list(variants[0].runs[0].latency_by_call_ms)
    table = _table("by kind of request: milliseconds, p50 / p99", ["setting", *names])
    for variant in variants:
        cells = []
        for name in names:
            found = [run.latency_by_call_ms[name] for run in variant.runs if run.latency_by_call_ms[name]]
            each = [median(call[quantile] for call in found) if found else 0.0 for quantile in ("p50", "p99")]
            cells.append(f"{each[0]:.2f} / {each[1]:.2f}")
        table.add_row(variant.label, *cells)
    return table


def _sizes(variant: Variant) -> str:
    totals: dict[str, dict[int, int]] = {}
    for run in variant.runs:
        for model, sizes in run.batch_sizes.items():
            for size, times in sizes.items():
                into = totals.setdefault(model, {})
                into[int(size)] = into.get(int(size), 0) + times
    lines = []
    for model, sizes in totals.items():
        executions = max(sum(sizes.values()), 1)
        parts = [f"{size}: {times / executions:.0%}" for size, times in sorted(sizes.items())]
        lines.append(f"{model} {{{', '.join(parts)}}}")
    return "; ".join(lines) or "not told"


def _known(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return spread(known, form) if known else _UNKNOWN


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table
