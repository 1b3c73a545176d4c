"""From a placement to what the proxy is told: a backend for each model, and which servers each backend has. Pure.

A model on one worker goes to that worker's backend, one on all of them to the pool. Every other set of workers, and
every set that is filled up to a quantum, needs a backend of its own: one of those that the configuration holds ready.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from app.scaleout.placement import Placement

#: Backends held ready for sets of workers, of each kind.
SETS = 16

POOL = "pool"


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that share the requests of a model; `quantum` where one is filled before the next."""

    workers: tuple[str, ...]
    quantum: int | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """Model → backend; backend held ready → the group that it serves; models for which no backend was left."""

    models: Mapping[str, str]
    groups: Mapping[str, Group] = field(default_factory=lambda: MappingProxyType({}))
    without: tuple[str, ...] = ()


def backend_of(worker: str) -> str:
    """The backend that prefers one worker."""
    return f"on_{worker}"


def set_names(kind: str) -> list[str]:
    """The backends held ready: `set_0`, … or `fill_0`, …"""
    return [f"{kind}_{number}" for number in range(SETS)]


def routes(
    placement: Placement,
    fleet: tuple[str, ...],
    quantum: Callable[[str], int | None],
    previous: Routes | None = None,
) -> Routes:
    """What the proxy is to be told. A group keeps the backend that it had: its counters of open requests live there."""
    wanted = {model: _group(workers, quantum(model)) for model, workers in sorted(placement.homes.items())}
    held = {} if previous is None else {group: name for name, group in previous.groups.items()}
    taken = {group: held[group] for group in wanted.values() if group in held}
    models, without = {}, []
    for model, group in wanted.items():
        name = _fixed(group, fleet) or taken.get(group) or _free(group, set(taken.values()))
        if name is None:
            without.append(model)
            name = POOL
        elif name in set_names("set") + set_names("fill"):
            taken[group] = name
        models[model] = name
    return Routes(models, {name: group for group, name in taken.items()}, tuple(without))


def _group(workers: tuple[str, ...], quantum: int | None) -> Group:
    return Group(workers, quantum if len(workers) > 1 else None)


def _fixed(group: Group, fleet: tuple[str, ...]) -> str | None:
    """The backend that needs no setting up."""
    if len(group.workers) == 1:
        return backend_of(group.workers[0])
    return POOL if group.quantum is None and set(group.workers) == set(fleet) else None


def _free(group: Group, taken: set[str]) -> str | None:
    return next((name for name in set_names("set" if group.quantum is None else "fill") if name not in taken), None)
