"""Whether the workers are fit to have models placed on them, and what their `/status` says to whoever places."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.scaleout.demand import Counts
from app.scaleout.fleet import Answer, Fleet

Status = Mapping[str, Any]

#: Disciplines under which a worker serves in an order that owes nothing to other models' past: what was placed together
#: would otherwise be held back by shares that the placement knows nothing of.
DISCIPLINES = ("fifo", "edf")

#: Seconds between two looks at workers that are still starting.
_PAUSE = 0.25


class ClusterError(Exception):
    """The workers cannot be a cluster; the message names the one at fault."""


class ModelFacts(NamedTuple):
    """What the fleet says of one model: bytes of weights, largest batch, and who has it."""

    nbytes: int
    max_batch: int | None
    holders: tuple[str, ...]


async def join(fleet: Fleet, seconds: float) -> dict[str, Status]:
    """Wait for every worker; their status. Raises `ClusterError`."""
    clock = asyncio.get_running_loop().time
    limit = clock() + seconds
    while True:
        ready = await fleet.ask_all("/v2/health/ready", seconds=2.0)
        absent = {name: answer for name, answer in ready.items() if not answer.ok}
        if not absent:
            break
        if clock() >= limit:
            name, answer = next(iter(absent.items()))
            why = answer.text or f"answers {answer.status}"
            raise ClusterError(f"worker {name} at {fleet.worker(name).address} is not ready after {seconds:g} s: {why}")
        await asyncio.sleep(min(_PAUSE, max(limit - clock(), 0.0)))
    statuses = statuses_of(await fleet.ask_all("/status"))
    check(statuses, fleet.names)
    return statuses


def check(statuses: Mapping[str, Status], names: Sequence[str]) -> None:
    """Raise `ClusterError` unless all are there, decide alike, and have the same models."""
    for name in names:
        if name not in statuses:
            raise ClusterError(f"worker {name} does not tell its status")
        discipline = statuses[name]["discipline"]
        if discipline not in DISCIPLINES:
            raise ClusterError(
                f"worker {name} runs {discipline}: lpt_packing needs scheduler.discipline {' or '.join(DISCIPLINES)}"
            )
    first, *others = names
    for name in others:
        odd = sorted(models_of(statuses[first]) ^ models_of(statuses[name]))
        if odd:
            raise ClusterError(f"workers {first} and {name} have different models: {', '.join(odd)}")


def statuses_of(answers: Mapping[str, Answer]) -> dict[str, Status]:
    """The status of those that told it."""
    found = {name: answer.json() for name, answer in answers.items() if answer.ok}
    return {name: status for name, status in found.items() if isinstance(status, dict) and "models" in status}


def models_of(status: Status) -> set[str]:
    """Names of the models that a worker serves."""
    return {model["name"] for model in status["models"] if model["serving"] is not None}


def counts_of(statuses: Mapping[str, Status]) -> dict[tuple[str, str], Counts]:
    """The counters of every worker and model."""
    return {
        (worker, model["name"]): Counts(
            serving["accepted"], serving["ok"] + serving["failed"], serving["compute_seconds"]
        )
        for worker, status in statuses.items()
        for model in status["models"]
        if (serving := model["serving"]) is not None
    }  # fmt: skip


def facts_of(statuses: Mapping[str, Status]) -> dict[str, ModelFacts]:
    """What is to be placed."""
    found: dict[str, ModelFacts] = {}
    for worker, status in statuses.items():
        for model in status["models"]:
            serving = model["serving"]
            if serving is None:
                continue
            sofar = found.get(model["name"], ModelFacts(0, None, ()))
            largest = max([int(size) for costs in serving["costs"].values() for size in costs], default=0) or None
            cap = serving["max_batch_size"]
            found[model["name"]] = ModelFacts(
                max(sofar.nbytes, serving["weight_bytes"]),
                sofar.max_batch or (min(largest, cap) if largest and cap else largest or cap),
                (*sofar.holders, worker),
            )
    return found
