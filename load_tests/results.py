"""The file of one command's results: written here, read by `compare`. Its variants share a machine and an hour.

A variant is one server setting: the digests of its models, and the figures of its runs, in the order of the rounds.
"""

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from load_tests.figures import Run
from load_tests.report import load_average, usable
from load_tests.workload import Workload

#: Of the file; another number means other fields.
FORMAT = 1


@dataclass(frozen=True)
class Variant:
    """One setting of the server, and what was seen of it."""

    label: str
    settings: Mapping[str, Any]
    models: Mapping[str, Mapping[str, str]]
    runs: Sequence[Run]

    def middle(self, figure: str) -> float:
        """The median over the rounds of a figure that is a number."""
        return float(median(getattr(run, figure) for run in self.runs))

    def tail(self, quantile: str) -> float:
        """The median over the rounds of a quantile of latency, in milliseconds; infinite where nothing was answered."""
        return median(run.latency_ms.get(quantile, float("inf")) for run in self.runs)


def machine_facts() -> dict[str, Any]:
    """Where it was measured."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": usable(),
        "load_average": load_average(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "uvicorn")},
    }


def write(
    path: Path,
    workload: Workload,
    variants: Sequence[Variant],
    machine: Mapping[str, Any],
    loop: Sequence[Mapping[int, float]] = (),
) -> None:
    """Write the file; `loop` has rows/s by batch size of the raw loop, one a round."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "command": shlex.join(["python", "-m", "load_tests", *sys.argv[1:]]),
        "machine": machine,
        "workload": workload.model_dump(mode="json"),
        "variants": [asdict(variant) for variant in variants],
        "loop": list(loop),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> tuple[dict[str, Any], list[Variant]]:
    """The file as it is, and its variants. Raises `ValueError` that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"{path}: format {content['format']}, this program reads {FORMAT}")
        variants = [
            Variant(each["label"], each["settings"], each["models"], [Run(**run) for run in each["runs"]])
            for each in content["variants"]
        ]
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: no results of this program ({error})") from error
    return content, variants
