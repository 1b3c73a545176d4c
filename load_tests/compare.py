"""`compare A.json B.json`: is B worse than A? For people, and for the last step before a new version takes traffic.

    python -m load_tests run digits --name before …      # and after the change: --name after
    python -m load_tests compare load_tests/results/before.json load_tests/results/after.json

Results of different models, settings or workloads say nothing about one another, and are refused unless
`--allow-different` names what may differ. Medians over the rounds are compared.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from load_tests.report import verdict
from load_tests.results import Variant, read
from load_tests.tables import console

#: What may be told to differ: the content of the models, their effective settings, what was asked.
KINDS = {"model": "digest", "policy": "policy_digest", "workload": ""}


@dataclass(frozen=True)
class Tolerances:
    """By how much B may be worse: part of the p99, of the requests/s; points of the rates."""

    p99: float = 0.10
    rate: float = 0.10
    misses: float = 0.005
    errors: float = 0.0


@dataclass(frozen=True)
class Judged:
    """One figure of A and B."""

    name: str
    before: float
    after: float
    worse: bool


def differences(before: Variant, after: Variant) -> dict[str, list[str]]:
    """By kind, what two measurements were not made of alike; a digest that is not known equals none."""
    found: dict[str, list[str]] = {}
    for kind, digest in [(kind, digest) for kind, digest in KINDS.items() if digest]:
        for model in sorted(before.models.keys() | after.models.keys()):
            ours, theirs = (side.models.get(model, {}).get(digest, "") for side in (before, after))
            if ours != theirs or not ours:
                said = f"{ours or 'not known'} and {theirs or 'not known'}"
                found.setdefault(kind, []).append(f"{digest} of model {model!r}: {said}")
    return found


def judge(before: Variant, after: Variant, tolerances: Tolerances) -> list[Judged]:
    """Every figure that counts."""
    p99 = before.tail("p99"), after.tail("p99")
    rate = before.middle("requests_per_s"), after.middle("requests_per_s")
    misses = before.middle("miss_rate"), after.middle("miss_rate")
    errors = before.middle("error_rate"), after.middle("error_rate")
    return [
        Judged("p99 ms", *p99, p99[1] > p99[0] * (1 + tolerances.p99)),
        Judged("requests/s", *rate, rate[1] < rate[0] * (1 - tolerances.rate)),
        Judged("missed, part of all", *misses, misses[1] > misses[0] + tolerances.misses),
        Judged("errors, part of all", *errors, errors[1] > errors[0] + tolerances.errors),
    ]


def pairs(before: Sequence[Variant], after: Sequence[Variant]) -> list[tuple[Variant, Variant]]:
    """What belongs together: the same label, or the only ones. Raises `ValueError`."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    others = {variant.label: variant for variant in after}
    found = [(variant, others[variant.label]) for variant in before if variant.label in others]
    if not found:
        raise ValueError("no setting was measured in both")
    return found


def refusals(
    contents: Sequence[dict[str, Any]], both: Sequence[tuple[Variant, Variant]], allowed: Sequence[str]
) -> list[str]:
    """Why these results are not to be compared."""
    complaints = []
    asked = [
        {name: value for name, value in content["workload"].items() if name not in {"name", "description", "settings"}}
        for content in contents
    ]
    if asked[0] != asked[1] and "workload" not in allowed:
        different = sorted(name for name in asked[0] if asked[0][name] != asked[1].get(name))
        complaints.append(f"workload: {', '.join(different)} (--allow-different workload)")
    for before, after in both:
        for kind, found in differences(before, after).items():
            if kind not in allowed:
                complaints += [f"{each} (--allow-different {kind})" for each in found]
    return complaints


def show(before: Variant, after: Variant, judged: Sequence[Judged]) -> None:
    """Print one pair."""
    label = before.label if before.label == after.label else f"{before.label} and {after.label}"
    table = Table(title=f"{label}: medians of {len(before.runs)} and {len(after.runs)} rounds", title_justify="left")
    for column in ("figure", "before", "after", "ratio", ""):
        table.add_column(column, justify="right" if column else "left")
    for each in judged:
        ratio = f"{each.after / each.before:.3f}" if each.before else ""
        table.add_row(each.name, f"{each.before:.4g}", f"{each.after:.4g}", ratio, "WORSE" if each.worse else "")
    console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when B is no worse, 1 when it is, 2 when the two are not to be compared."""
    usual = Tolerances()
    parser = argparse.ArgumentParser(
        prog="python -m load_tests compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--allow-different", nargs="+", choices=KINDS, default=[], help="what the two need not have in common"
    )
    parser.add_argument("--p99", type=float, default=usual.p99, help="by so large a part p99 may rise (0.1)")
    parser.add_argument("--rate", type=float, default=usual.rate, help="by so large a part requests/s may fall (0.1)")
    parser.add_argument("--misses", type=float, default=usual.misses, help="so many more of all may miss (0.005)")
    parser.add_argument("--errors", type=float, default=usual.errors, help="so many more of all may fail (0)")
    options = parser.parse_args(argv)
    try:
        (first, before), (second, after) = read(options.before), read(options.after)
        both = pairs(before, after)
    except ValueError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    if complaints := refusals((first, second), both, options.allow_different):
        print("compare: these results say nothing about one another:", *complaints, sep="\n  ", file=sys.stderr)
        return 2
    if first["machine"]["cpu"] != second["machine"]["cpu"]:
        print("compare: measured on different machines: times may differ for that alone", file=sys.stderr)
    worse = []
    for one, other in both:
        judged = judge(one, other, Tolerances(options.p99, options.rate, options.misses, options.errors))
        show(one, other, judged)
        worse += [f"{each.name} at {one.label}" for each in judged if each.worse]
    return verdict(not worse, f"worse: {', '.join(worse)}" if worse else "no worse")


if __name__ == "__main__":
    sys.exit(main())
