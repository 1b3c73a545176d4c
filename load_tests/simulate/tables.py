"""Results as people read them, on a terminal, and as programs read them, in JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan, sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

from load_tests.simulate.outcome import ModelOutcome, Outcome
from load_tests.simulate.rules import Rule
from load_tests.simulate.scenarios import Scenario

#: Reasons of drops, and their headings.
_REASONS = {
    "infeasible_admission": "refused",
    "queue_full": "full",
    "expired_queue": "expired",
    "infeasible_dispatch": "shed",
}

_SHOWN_SIZES = 4


@dataclass(slots=True)
class Result:
    """What one rule made of one scenario; what was not asked for is missing."""

    rule: Rule
    r99: tuple[float, float] | None = None
    """Highest rates with 99 % in time: of all requests together, of every model."""
    loads: dict[float, Outcome] = field(default_factory=dict)
    """Multiple of the nominal rate → outcome, of all seeds together."""
    worsts: dict[float, list[float]] = field(default_factory=dict)
    """Multiple of the nominal rate → the part in time of the model that fared worst, seed by seed."""

    @property
    def valued(self) -> bool:
        """Whether the rule goes by value."""
        return self.rule.config.sizing == "value"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first to the left, the others to the right."""
    lines = [heads, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        [
            "  ".join([line[0].ljust(widths[0]), *[c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]])
            for line in lines
        ]
    )


def rates(results: Sequence[Result], bound: Sequence[float] = ()) -> str:
    """Per rule: r99, and goodput at each load; last the `bound` of both, where it is known."""
    loads = list(results[0].loads)
    heads = ["rule", "r99", "r99 worst", *[f"goodput ×{load:g}" for load in loads]]
    rows = []
    for result in results:
        every, worst = result.r99 or (float("nan"), float("nan"))
        goodputs = [f"{outcome.goodput:.0f}" for outcome in result.loads.values()]
        rows.append([result.rule.label, f"{every:.0f}", f"{worst:.0f}", *goodputs])
    if bound:
        rows.append(["no rule exceeds", f"{bound[0]:.0f}", "", *[f"{goodput:.0f}" for goodput in bound[1:]]])
    return table(heads, rows)


def worst(results: Sequence[Result]) -> str:
    """Per rule: the part in time of the model that fared worst, at each load; and how rules of value lie to the others.

    Parts are means over the seeds. Differences are to the one rule that goes by no value and fares best at that load.
    """
    loads = list(results[0].worsts)
    heads = ["worst model in time", *[f"×{load:g}" for load in loads]]
    rows = [[r.rule.label, *[_percent(fmean(r.worsts[load])) for load in loads]] for r in results]
    for result in results:
        found = [beside(results, result, load) for load in loads] if result.valued else []
        if any(found):
            rows.append([f"{result.rule.label}, less the best other", *[_points(each) for each in found]])
    return table(heads, rows)


class Beside(NamedTuple):
    """How much better the worst model fares than by another rule: mean over the seeds, and two standard errors."""

    rule: str
    mean: float
    noise: float
    """Of differences seed by seed: both rules had the same arrivals. NaN with one seed."""


def beside(results: Sequence[Result], result: Result, load: float) -> Beside | None:
    """Against the rule that goes by no value and whose worst model fares best over all seeds; None without one."""
    others = [each for each in results if not each.valued]
    if not others:
        return None
    best = max(others, key=lambda each: fmean(each.worsts[load]))
    gains = [own - other for own, other in zip(result.worsts[load], best.worsts[load], strict=True)]
    noise = 2 * stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else nan
    return Beside(best.rule.label, fmean(gains), noise)


def details(results: Sequence[Result], load: float) -> str:
    """Per rule, at one load: latencies, batches, use of the device, and where the rest of the requests went."""
    heads = ["rule", "in time", "worst", "late", *_REASONS.values()]
    heads += ["p50 ms", "p99 ms", "rows/run", "padding", "busy", "Jain", "sizes run most"]
    rows = []
    for result in results:
        outcome = result.loads[load]
        drops = outcome.drops
        lost = [_part(count, outcome.arrived) for count in (outcome.late, *[drops[reason] for reason in _REASONS])]
        rows.append(
            [
                result.rule.label,
                _percent(outcome.attainment),
                _percent(outcome.worst),
                *lost,
                f"{outcome.latency(0.5) * 1e3:.1f}",
                f"{outcome.latency(0.99) * 1e3:.1f}",
                f"{outcome.rows_per_batch:.1f}",
                _percent(outcome.padding),
                _percent(outcome.utilisation),
                f"{outcome.fairness:.3f}",
                sizes(outcome),
            ]
        )
    return table(heads, rows)


def shares(scenario: Scenario, results: Sequence[Result]) -> str:
    """Per rule: device time of each model, Jain's index of time per weight, and, with deadlines, who was in time."""
    total = sum(model.weight for model in scenario.models)
    names = [f"{model.name} {model.weight / total:.2f}" for model in scenario.models]
    heads = ["rule", *names, "Jain", "runs", "rows/s"]
    timed = scenario.arrivals != "backlogged"
    heads += [f"{model.name} in time" for model in scenario.models] if timed else []
    rows = []
    for result in results:
        [outcome] = result.loads.values()
        rows.append(
            [
                result.rule.label,
                *[f"{share:.3f}" for share in outcome.shares],
                f"{outcome.fairness:.3f}",
                f"{sum(model.dispatches for model in outcome.models)}",
                f"{sum(model.rows for model in outcome.models) / outcome.seconds:.0f}",
                *([_percent(model.attainment) for model in outcome.models] if timed else []),
            ]
        )
    return table(heads, rows)


def weights(results: Sequence[Result], load: float) -> str:
    """Per rule, at one load: answers in time, what loads there were, and whom they made wait."""
    heads = ["rule", "goodput", "in time", "worst", "hits", "loads/s", "wasted", "rows/load"]
    heads += ["computing", "waiting", "coldest ms", "p99 ms"]
    rows = []
    for result in results:
        outcome = result.loads[load]
        served = sum([model.rows for model in outcome.models])
        rows.append(
            [
                result.rule.label,
                f"{outcome.goodput:.0f}",
                _percent(outcome.attainment),
                _percent(outcome.worst),
                _percent(outcome.hit_rate),
                f"{outcome.loads / outcome.seconds:.2f}",
                _part(outcome.wasted, max(outcome.loads, 1)),
                f"{served / outcome.loads:.1f}" if outcome.loads else "·",
                _percent(outcome.utilisation - outcome.waiting),
                _percent(outcome.waiting),
                f"{outcome.longest_cold * 1e3:.0f}",
                f"{outcome.latency(0.99) * 1e3:.0f}",
            ]
        )
    return table(heads, rows)


def sizes(outcome: Outcome) -> str:
    """The compiled sizes that were run most, in parts of all executions."""
    total = max(outcome.batch_sizes.total(), 1)
    most = sorted(outcome.batch_sizes.most_common(_SHOWN_SIZES))
    return " ".join([f"{size}:{100 * count / total:.0f}%" for size, count in most])


def as_json(results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """Everything, by scenario, rule and load."""
    return {name: {each.rule.label: _result(each, some) for each in some} for name, some in results.items()}


def _result(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    every, worst = result.r99 or (None, None)
    loads = {f"{load:g}": _outcome(outcome) for load, outcome in result.loads.items()}
    for load, values in result.worsts.items():
        loads[f"{load:g}"]["worst_by_seed"] = values
        if result.valued and (found := beside(results, result, load)):
            noise = None if isnan(found.noise) else found.noise
            loads[f"{load:g}"]["worst_less_best_other"] = {"rule": found.rule, "mean": found.mean, "noise": noise}
    return {"r99": every, "r99_worst": worst, "loads": loads}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "seconds": outcome.seconds,
        "offered": outcome.arrived / outcome.seconds,
        "goodput": outcome.goodput,
        "attainment": outcome.attainment,
        "worst_attainment": outcome.worst,
        "late": outcome.late,
        "drops": dict(outcome.drops),
        "latency_p50_ms": outcome.latency(0.5) * 1e3,
        "latency_p99_ms": outcome.latency(0.99) * 1e3,
        "rows_per_batch": outcome.rows_per_batch,
        "padding": outcome.padding,
        "utilisation": outcome.utilisation,
        "fairness": outcome.fairness,
        "hit_rate": outcome.hit_rate,
        "loads": outcome.loads,
        "wasted_loads": outcome.wasted,
        "waiting_for_weights": outcome.waiting,
        "longest_cold_ms": outcome.longest_cold * 1e3,
        "models": {
            model.name: _model(model, share) for model, share in zip(outcome.models, outcome.shares, strict=True)
        },
    }


def _model(model: ModelOutcome, share: float) -> dict[str, Any]:
    return {
        "weight": model.weight,
        "share": share,
        "arrived": model.arrived,
        "in_time": model.in_time,
        "late": model.late,
        "drops": dict(model.drops),
        "dispatches": model.dispatches,
        "rows": model.rows,
        "padded_rows": model.padded_rows,
        "loads": model.loads,
        "longest_cold_ms": model.longest_cold * 1e3,
        "batch_sizes": dict(sorted(model.batch_sizes.items())),
    }


def _part(count: int, total: int) -> str:
    return "·" if not count else _percent(count / total)


def _points(found: Beside | None) -> str:
    if found is None:
        return "·"
    noise = "" if isnan(found.noise) else f" ± {100 * found.noise:.1f}"
    return f"{100 * found.mean:+.1f}{noise}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}%"
