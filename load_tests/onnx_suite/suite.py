"""Serves the models of the suite as bare bundles, asks every one of them, and judges the answers."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from load_tests.onnx_suite.asking import Asker
from load_tests.onnx_suite.batches import SUFFIX, Rows, open_graph
from load_tests.onnx_suite.cases import Case
from load_tests.onnx_suite.judging import Outcome, Verdict, judge
from load_tests.processes import Server, child, free_port

_TOKEN = "onnx-suite"

#: How long the server lets the first of several rows wait for the others.
_WAIT_MS = 100

#: Seconds between two looks at what has been loaded.
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Report:
    """The outcomes of the graphs as they are, and of those whose first axis was opened; seconds of both steps.

    `merged` is how many of the latter had rows of several requests in one execution, by the server's verdict on them.
    """

    outcomes: Sequence[Outcome]
    opened: Sequence[Outcome]
    merged: Mapping[str, int]
    loading_seconds: float
    asking_seconds: float

    @property
    def failed(self) -> list[Outcome]:
        """What is wrong."""
        return [each for each in [*self.outcomes, *self.opened] if each.verdict is Verdict.FAILED]


def run(cases: Sequence[Case], folder: Path, env: Mapping[str, str]) -> Report:
    """Serve and judge these cases; `folder` takes bundles and compile cache, `env` is added to the server's own."""
    bundles = folder / "bundles"
    opened = [case for case in cases if _write_bundles(case, bundles)]
    begun = time.monotonic()
    with (
        _serving(bundles, folder / "cache", env) as server,
        closing(Asker(server.url.removeprefix("http://"))) as asker,
        _progress() as progress,
    ):
        _wait_until_loaded(asker, progress, len(cases) + len(opened))
        loaded = time.monotonic()
        states = {each["name"]: each for each in asker.get("/status")["models"]}
        outcomes = [
            judge(case, states[case.name]["state"], states[case.name]["reason"], asker)
            for case in progress.track(cases, description="asking")
        ]
        judged, merged = _judge_opened(opened, bundles, states, asker, server, progress)
    return Report(outcomes, judged, merged, loaded - begun, time.monotonic() - loaded)


def _judge_opened(
    cases: Sequence[Case], bundles: Path, states: Mapping[str, Any], asker: Asker, server: Server, progress: Progress
) -> tuple[list[Outcome], Mapping[str, int]]:
    outcomes, merged = [], dict[str, int]()
    with closing(Rows(server.url.removeprefix("http://"))) as rows:
        for case in progress.track(cases, description="asking row by row"):
            name = case.name + SUFFIX
            status = states[name]
            verdict = status["serving"]["batch_safety"] if status["serving"] else ""
            if status["serving"] and status["serving"]["batchable"]:
                asker.post("/admin/set_policy", {"model": name, "max_wait_ms": _WAIT_MS}, _TOKEN)
            outcome, together = rows.judge(case, bundles / name / "model.onnx", status["state"], verdict)
            outcomes.append(outcome)
            kind = verdict or "alone"
            merged[kind] = merged.get(kind, 0) + (together > 1)
    return outcomes, merged


def _write_bundles(case: Case, bundles: Path) -> bool:
    """One bundle, or two: whether there is one whose first axis is open."""
    bundle, opened = bundles / case.name, bundles / (case.name + SUFFIX)
    bundle.mkdir(parents=True)
    shutil.copyfile(case.model_file, bundle / "model.onnx")
    opened.mkdir()
    if open_graph(case, opened / "model.onnx"):
        return True
    opened.rmdir()
    return False


@contextmanager
def _serving(bundles: Path, cache: Path, env: Mapping[str, str]) -> Iterator[Server]:
    """The server, as soon as it answers: it loads meanwhile."""
    port = free_port()
    settings = {
        "MODEL_DIRS": str(bundles),
        "CACHE_DIR": str(cache),
        "ENDPOINTS_PORT": str(port),
        "ENDPOINTS_ADMIN_TOKEN": _TOKEN,
        "DRAIN_DELAY_SECONDS": "0",
        "RUNTIME_BACKEND": "cpu",
    }
    named = {f"INFERENCE_SERVER_{name}": value for name, value in settings.items()}
    with child([sys.executable, "-m", "app", "serve"], {**env, **named}, port, "/v2/health/live") as server:
        yield server


def _wait_until_loaded(asker: Asker, progress: Progress, count: int) -> None:
    task = progress.add_task("loading", total=count)
    while True:
        index = asker.post("/v2/repository/index", {})
        done = sum(model["state"] in ("READY", "UNAVAILABLE") for model in index)
        progress.update(task, completed=done)
        if done == count:
            return
        time.sleep(_LOOK_SECONDS)


def _progress() -> Progress:
    return Progress(TextColumn("{task.description:>17}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
