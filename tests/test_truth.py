"""What the settings and the documents promise is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from app.domain.config import ModelPolicy
from app.settings import Settings
from tests.settings_table import README, renewed, tables

APP = Path(__file__).parents[1] / "app"

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(APP.rglob("*.py"))}

#: Where settings are declared.
DECLARED = {APP / "settings.py", APP / "domain/config.py"}


def leaves(model: type[BaseModel]) -> Iterator[str]:
    """The names of the settings of a section, and of the sections in it."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner)
        elif name != "models":
            yield name


def attributes(tree: ast.AST) -> set[str]:
    """Every attribute that is read."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def read_somewhere() -> set[str]:
    return set().union(*[attributes(tree) for path, tree in TREES.items() if path not in DECLARED])


SETTINGS = sorted({*leaves(Settings), *leaves(ModelPolicy)})


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_obeyed(setting):
    assert setting in read_somewhere()


def test_the_readme_has_every_setting_as_the_classes_define_it():
    """`make settings-table` writes it anew."""
    text = README.read_text(encoding="utf-8")
    assert renewed(text) == text


@pytest.mark.parametrize(
    "row",
    [
        "| `STARTUP_MODELS` | automatic | Models loaded at start; by default all, none in `explicit` mode. |",
        "| `RUNTIME_MEM_FRACTION` | `0.9` | Part of the device memory that the server may use. (> 0, ≤ 1) |",
        "| `RECORD_DIR` | none | Where arrivals are recorded for the simulator; nowhere by default. |",
        "| `LOG_FORMAT` | `text` | Form of the log lines. (`text`, `json`) |",
        "| `weight` | `1` | Relative share of device time under `fair`. (> 0) |",
    ],
)
def test_a_row_has_name_default_meaning_and_what_is_allowed(row):
    assert row in tables().splitlines()


# the path of one request, as the README of the code tells it


def rows() -> list[list[str]]:
    """What each row of the table names in code."""
    text = (APP / "README.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## 4\. The path of one request$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return [re.findall(r"`([^`]+)`", line) for line in section.splitlines() if re.match(r"\| \d+ ", line)]


def defined(tree: ast.AST, within: str | None = None) -> set[str]:
    """Names of functions, classes and fields; those of one class where it is named."""
    if within is not None:
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == within]
        return set().union(*map(defined, found))
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    fields = [node.target for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    return names | {field.id for field in fields if isinstance(field, ast.Name)}


def stands(named: str) -> bool:
    """Whether a file, `module.function`, `Class.method` or plain name is there."""
    if named.endswith((".py", "*")):
        return any(APP.glob(named)) or any(APP.rglob(named))
    *place, name = named.rsplit(".", 1)
    if not place:
        return any(name in defined(tree) for tree in TREES.values())
    [owner] = place
    if owner[0].isupper():
        return any(name in defined(tree, owner) for tree in TREES.values())
    return any(name in defined(tree) for path, tree in TREES.items() if path.match(f"{owner}.py"))


def test_the_path_of_one_request_has_its_rows():
    assert len(rows()) >= 10


@pytest.mark.parametrize("named", sorted({named for row in rows() for named in row}))
def test_what_the_path_of_one_request_names_is_there(named):
    assert stands(named)


@pytest.mark.parametrize("named", ["api/gone.py", "nowhere/*", "batch.gone", "Engine.gone", "Gone.infer", "gone_name"])
def test_what_is_not_there_would_be_noticed(named):
    assert not stands(named)
