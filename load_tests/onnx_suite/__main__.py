"""`python -m load_tests.onnx_suite`: every model of the ONNX backend tests, through a real server."""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from load_tests.onnx_suite.cases import Case, find_cases
from load_tests.onnx_suite.judging import Outcome, Verdict
from load_tests.onnx_suite.plain import surroundings
from load_tests.onnx_suite.suite import Report, run

#: Where `make onnx-suite` unpacks the release that ships the tests: later ones do not.
DATA = Path(".venv/onnx-suite")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when nothing failed."""
    options = _options(arguments)
    cases = [case for case in select(find_cases(options.data), options.every) if options.only in case.name]
    if not cases:
        print(f"there are no models below {options.data}: make onnx-suite brings them")
        return 2
    with tempfile.TemporaryDirectory(prefix="onnx-suite-") as folder:
        env = surroundings(Path(folder))
        os.environ.update(env)
        report = run(cases, Path(folder), env)
    show(report)
    if options.json is not None:
        options.json.write_text(json.dumps(to_json(report), indent=1))
    return 1 if report.failed else 0


def select(cases: Sequence[Case], every: int) -> list[Case]:
    """Every so-many-th case, and all of those that servers get wrong most easily."""
    return [case for index, case in enumerate(cases) if index % every == 0 or case.peculiar]


def show(report: Report) -> None:
    """Tables for people."""
    console = Console()
    verdicts = Counter(outcome.verdict for outcome in report.outcomes)
    for title, outcomes in (("as they are", report.outcomes), ("row by row", report.opened)):
        table = Table("verdict", "reason", "models", title=title, title_justify="left")
        for (verdict, reason), count in sorted(_grouped(outcomes).items(), key=lambda each: (each[0][0], -each[1])):
            table.add_row(verdict, reason, str(count))
        console.print(table)
    console.print(f"merged, by verdict on their batches: {dict(report.merged)}")
    for outcome in report.failed:
        console.print(f"[red]{outcome.name}[/red]: {outcome.reason}: {outcome.detail}", soft_wrap=True, highlight=False)
    print(
        f"{verdicts[Verdict.PASSED]} passed, {verdicts[Verdict.REFUSED]} refused, {len(report.failed)} failed; "
        f"loading {report.loading_seconds:.0f} s, asking {report.asking_seconds:.0f} s"
    )


def to_json(report: Report) -> dict[str, object]:
    """Everything, for machines."""
    return {
        "models": [outcome.to_json() for outcome in report.outcomes],
        "row_by_row": [outcome.to_json() for outcome in report.opened],
        "merged": dict(report.merged),
        "loading_seconds": report.loading_seconds,
        "asking_seconds": report.asking_seconds,
    }


def _grouped(outcomes: Sequence[Outcome]) -> Counter[tuple[str, str]]:
    return Counter((str(outcome.verdict), outcome.reason) for outcome in outcomes)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m load_tests onnx_suite", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="directory into which onnx==1.22.0 was installed")
    parser.add_argument("--every", type=int, default=1, help="only each so-many-th model, and all of the peculiar ones")
    parser.add_argument("--only", default="", help="only models that have this in their name")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
