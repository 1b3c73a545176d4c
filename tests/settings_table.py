"""The README's tables of settings, of the classes that define them: `python -m tests.settings_table` renews them."""

import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.domain.config import ModelPolicy
from app.settings import Settings

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- settings: made by `make settings-table` -->", "<!-- end of settings -->"

TITLES = {
    "": "The process",
    "runtime": "The device: `RUNTIME_…`",
    "scheduler": "Time and batches: `SCHEDULER_…`",
    "endpoints": "The HTTP front: `ENDPOINTS_…`",
    "cluster": "Several workers: `CLUSTER_…`",
}

_BOUNDS: Sequence[tuple[type[Any], str]] = ((Gt, ">"), (Ge, "≥"), (Lt, "<"), (Le, "≤"))


#: The meaning tells what is taken where nothing is set.
_CHOSEN = re.compile(r"(?<!none )(?<!nowhere )by default", re.DOTALL)


def tables() -> str:
    """One table a section, then that of the settings of one model."""
    parts = []
    for section, title in TITLES.items():
        model = Settings.model_fields[section].annotation if section else Settings
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        parts.append(_table(title, f"{section}_" if section else "", model))
    parts.append(
        _table('One model: in `SCHEDULER_MODELS`, JSON: `{"tabular": {"weight": 2}}`', "", ModelPolicy, str.lower)
    )
    return "\n\n".join(parts)


def renewed(text: str) -> str:
    """The README with the tables as they are to be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _table(title: str, prefix: str, model: type[BaseModel], case: Any = str.upper) -> str:
    rows = [
        f"| `{case(prefix + name)}` | {_default(field)} | {_meaning(field)} |"
        for name, field in model.model_fields.items()
        if name not in TITLES
    ]
    return "\n".join([f"**{title}**", "", "| setting | default | meaning |", "|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "`{}`" if field.default_factory is dict else "the user's"
    value = field.default
    if value is None:
        return "automatic" if _CHOSEN.search(field.description or "") else "none"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`" if value else "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _meaning(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    choices = _choices(field.annotation)
    allowed = [] if all(each in text for each in choices) else choices
    allowed += _range(field.annotation, field.metadata)
    return f"{text} ({', '.join(allowed)})" if allowed else text


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [f"`{each}`" for each in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [f"`{each}`" for each in annotation]
    return [each for inner in get_args(annotation) for each in _choices(inner)]


def _range(annotation: Any, given: Sequence[Any]) -> list[str]:
    """The bounds, wherever they are noted: at the field, or within a type that may be None as well."""
    inner = [bound for each in get_args(annotation) for bound in _range(each, getattr(each, "__metadata__", ()))]
    nested = [bound for each in given if isinstance(each, FieldInfo) for bound in _range(None, each.metadata)]
    bounds = [
        (sign, getattr(each, kind.__name__.lower()))
        for each in given
        for kind, sign in _BOUNDS
        if isinstance(each, kind)
    ]
    return [*(f"{sign} {bound}" for sign, bound in bounds), *nested, *inner]


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
