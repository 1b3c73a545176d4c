"""Results as a picture: rates and tails over time, the latency curve, batch sizes, stages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from load_tests.results import Variant
from load_tests.workload import Workload


def draw(path: Path, workload: Workload, variants: Sequence[Variant], loop: Sequence[Mapping[int, float]]) -> None:
    """Write a PNG. The last round stands for what changes over time, all rounds for the rest."""
    figure = Figure(figsize=(13.0, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{workload.name} {workload.description}".strip(), fontsize="medium")
    (rate, tail, curve), (bars, sizes, stages) = figure.subplots(2, 3)
    for place, variant in enumerate(variants):
        colour = f"C{place}"
        _over_time(rate, tail, variant, colour)
        for run in variant.runs:
            parts, values = zip(*run.latency_curve, strict=True) if run.latency_curve else ((), ())
            curve.plot([1.0 / max(1.0 - part, 1e-4) for part in parts], values, color=colour, linewidth=0.8)
    _label(rate, "answered (dotted: due)", "s", "requests/s")
    _label(tail, "p50, and dashed p99", "s", "ms")
    tail.set_yscale("log")
    _label(curve, "latency of one in so many", "", "ms")
    curve.set_xscale("log")
    curve.set_yscale("log")
    _rates(bars, variants, loop)
    _sizes(sizes, variants)
    _stages(stages, variants)
    rate.legend(fontsize="small")
    figure.savefig(path, format="png")


def _over_time(rate: Axes, tail: Axes, variant: Variant, colour: str) -> None:
    parts = variant.runs[-1].over_time
    at = [part["at"] for part in parts]
    rate.plot(at, [part["ok_per_s"] for part in parts], color=colour, label=variant.label)
    rate.plot(at, [part["due_per_s"] for part in parts], color=colour, linestyle=":", linewidth=0.8)
    for name, style in (("p50_ms", "-"), ("p99_ms", "--")):
        tail.plot(at, [part.get(name, float("nan")) for part in parts], color=colour, linestyle=style)
    rate.set_ylim(bottom=0)


def _rates(bars: Axes, variants: Sequence[Variant], loop: Sequence[Mapping[int, float]]) -> None:
    names = [variant.label for variant in variants]
    values = [[run.rows_per_s for run in variant.runs] for variant in variants]
    if loop:
        best = max(loop[0], key=lambda size: median(rates[size] for rates in loop))
        names.append(f"loop at {best}")
        values.append([rates[best] for rates in loop])
    middle = [median(each) for each in values]
    spans = [[m - min(each) for m, each in zip(middle, values, strict=True)]]
    spans.append([max(each) - m for m, each in zip(middle, values, strict=True)])
    bars.barh(names, middle, xerr=spans, color=[f"C{place}" for place in range(len(names))])
    bars.invert_yaxis()
    _label(bars, "rows/s, median and range", "rows/s", "")


def _sizes(axes: Axes, variants: Sequence[Variant]) -> None:
    """Part of the executions at each size, of all models together."""
    totals = [Counter[int]() for _ in variants]
    for variant, total in zip(variants, totals, strict=True):
        for run in variant.runs:
            for sizes in run.batch_sizes.values():
                total.update({int(size): times for size, times in sizes.items()})
    every = sorted(set().union(*totals))
    for place, total in enumerate(totals):
        parts = [total[size] / max(total.total(), 1) for size in every]
        axes.plot(range(len(every)), parts, "o-", color=f"C{place}")
    axes.set_xticks(range(len(every)), [str(size) for size in every])
    _label(axes, "part of the executions", "batch size", "")


def _stages(axes: Axes, variants: Sequence[Variant]) -> None:
    """Mean milliseconds of each stage, stacked."""
    names = list(dict.fromkeys(name for variant in variants for run in variant.runs for name in run.stages_ms))
    left = [0.0] * len(variants)
    for name in names:
        means = [
            median([run.stages_ms[name]["mean"] for run in variant.runs if run.stages_ms.get(name)] or [0.0])
            for variant in variants
        ]
        if any(means):
            axes.barh([variant.label for variant in variants], means, left=left, label=name)
        left = [begin + mean for begin, mean in zip(left, means, strict=True)]
    if any(left):
        axes.legend(fontsize="small")
    axes.invert_yaxis()
    _label(axes, "mean time in each stage", "ms", "")


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="small")
    axes.set_xlabel(x, fontsize="small")
    axes.set_ylabel(y, fontsize="small")
