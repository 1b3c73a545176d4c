"""Arrivals that a server put on record, on models that cost what it had learned, for other rules to serve."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from app.scheduling.coalescing import split_rows
from app.scheduling.request import QueuedRequest
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.scenarios import Scenario


@dataclass(frozen=True)
class RecordedModel(SimulatedModel):
    """A model that costs what was measured, size by size."""

    costs: Mapping[int, float] | None = None
    """Seconds by compiled size."""

    def seconds(self, size: int) -> float:
        """True seconds of one execution at a compiled size."""
        assert self.costs is not None
        return self.costs[size]


class Arrived(NamedTuple):
    """One request on record: seconds after the first, rows, and the seconds it allowed."""

    at: float
    model: str
    rows: int
    timeout: float


class Record(NamedTuple):
    """What was recorded, as a scenario. A request of more rows than the largest size holds stands in pieces."""

    scenario: Scenario
    arrivals: tuple[Arrived, ...]
    left_out: Mapping[str, int]
    """Requests of models whose costs are not known, by model."""
    outcomes: Mapping[str, int]
    """What became of them on the server."""

    def requests(self, load: float) -> list[QueuedRequest]:
        """The requests, `load` times as fast as they came."""
        models = {model.name: model for model in self.scenario.models}
        return [
            _with(models[each.model].request(each.at / load), rows, each.at / load + each.timeout)
            for each in self.arrivals
            for rows in split_rows(each.rows, models[each.model].sizes[-1])
        ]


def read_record(path: Path, status: Path) -> Record:
    """Read a file of `record_dir`, and the answer of `/status` of the server that wrote it.

    Raises `ValueError` where nothing can be replayed.
    """
    found = json.loads(status.read_text(encoding="utf-8"))
    models = {model.name: model for model in map(_model, _served(found)) if model is not None}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines.sort(key=lambda line: float(line["time"]))  # they are written when requests end
    known = [line for line in lines if line["model"] in models]
    if not known:
        raise ValueError(f"{path}: no request of a model whose costs {status} tells")
    first = known[0]["time"]
    arrivals = tuple(
        Arrived(line["time"] - first, line["model"], line["rows"] or 1, line["timeout"] or inf) for line in known
    )
    seconds = max(arrivals[-1].at, 1e-3)
    counts = Counter(each.model for each in arrivals)
    used = tuple(replace(model, share=counts[name]) for name, model in models.items() if counts[name])
    scenario = Scenario(
        path.stem,
        f"{len(arrivals)} requests on record",
        used,
        "recorded",
        len(arrivals) / seconds,
        seconds,
        found["weight_pool_bytes"],
    )
    left_out = Counter(line["model"] for line in lines if line["model"] not in models)
    return Record(scenario, arrivals, left_out, Counter(line["outcome"] for line in known))


def _with(request: QueuedRequest, rows: int, deadline: float) -> QueuedRequest:
    request.rows, request.deadline = rows, deadline
    return request


def _served(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [each for model in status["models"] for each in (model, *model.get("parts", ())) if each["serving"]]


def _model(told: Mapping[str, Any]) -> RecordedModel | None:
    """The model as its costs tell it, those of the variant that has most; None for one without."""
    serving = told["serving"]
    costs: Mapping[str, float] = max(serving["costs"].values(), key=len, default={})
    if not costs:
        return None
    by_size = {int(size): seconds for size, seconds in sorted(costs.items(), key=lambda each: int(each[0]))}
    load_ms = serving["weight_load_seconds"] / max(serving["weight_loads"], 1) * 1e3
    return RecordedModel(
        told["name"],
        0.0,
        0.0,
        weight=serving["weight"],
        sizes=tuple(by_size),
        load_ms=load_ms,
        nbytes=serving["weight_bytes"],
        costs=by_size,
    )
