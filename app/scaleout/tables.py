"""What `inference-server cluster status` shows."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from app.api.terminal import human_bytes


def cluster_tables(status: Mapping[str, Any]) -> Group:
    """The fleet in a table, where models are in another, and what is wrong."""
    placement = status["placement"]
    parts: list[Text | Table] = [Text(_head(status)), _workers(status)]
    if placement is not None:
        parts.append(_models(placement))
        parts += [Text(warning, style="red") for warning in placement["warnings"]]
    return Group(*parts)


def _head(status: Mapping[str, Any]) -> str:
    placement = status["placement"]
    head = f"{status['mode']}, {len(status['workers'])} workers{', draining' if status['draining'] else ''}"
    return head if placement is None else f"{head}, placed {placement['repacks']} times"


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column.strip(), justify="right" if column.startswith(" ") else "left", no_wrap=True)
    return table


def _workers(status: Mapping[str, Any]) -> Table:
    table = _table(
        "worker", "device", "address", " pid", " starts", "state", " queue", " answered", " weights", " load"
    )
    loads = {} if status["placement"] is None else status["placement"]["workers"]
    for worker in status["workers"]:
        node = worker["status"]
        serving = [model["serving"] for model in (node or {"models": []})["models"] if model["serving"]]
        load = loads.get(worker["name"])
        table.add_row(
            worker["name"],
            worker["device"],
            worker["address"],
            str(worker["pid"] or ""),
            str(worker["starts"]),
            "silent" if node is None else "alive" if node["alive"] else "not alive",
            "" if node is None else str(node["queue_depth"]),
            "" if node is None else str(sum(each["ok"] for each in serving)),
            "" if node is None else human_bytes(node["resident_weight_bytes"]),
            "" if load is None else f"{load['load']:.0%}",
        )
    return table


def _models(placement: Mapping[str, Any]) -> Table:
    table = _table("model", "workers", " load", " weights", "backend")
    for name, model in placement["models"].items():
        table.add_row(
            name,
            ", ".join(model["workers"]),
            f"{model['load']:.1%}",
            human_bytes(model["weight_bytes"]),
            model["backend"],
        )
    return table
