"""Every fault in `faults.md` has a proof: tests that are there, or a reason."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent

TABLES = TESTS / "faults.md"


COLUMNS = ["id", "fault", "what holds here", "proof"]

#: The least words that could be a reason.
REASON_WORDS = 6


class Row(NamedTuple):
    id: str
    fault: str
    holds: str
    proof: str

    @property
    def named(self) -> list[str]:
        """What is named in backquotes."""
        return re.findall(r"`([^`]+)`", self.proof)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_rows(text: str) -> list[Row]:
    """The rows of all tables. Raises `ValueError` for one without all four cells."""
    found = []
    for line in text.splitlines():
        if not line.startswith("|") or set(line) <= set("|- ") or cells(line) == COLUMNS:
            continue
        row = cells(line)
        if len(row) != len(COLUMNS) or not all(row):
            raise ValueError(f"a row needs {COLUMNS}: {line}")
        found.append(Row(*row))
    return found


@cache
def defined_in(path: str) -> set[str]:
    """The test functions that a file below `tests/` defines; none where there is no such file."""
    file = TESTS / path
    if not file.is_file():
        return set()
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def complaint(row: Row) -> str | None:
    """What is wrong with the proof of a row."""
    tests = [name for name in row.named if "::" in name]
    for path, name in (test.split("::", 1) for test in tests):
        if not name.startswith("test_") or name not in defined_in(path):
            return f"{row.id} names tests/{path}::{name}, which is not there"
    if not tests and (len(row.proof.split()) < REASON_WORDS or not row.proof.endswith(".")):
        return f"{row.id} has neither a test nor a sentence that says why it cannot happen"
    return None


ROWS = read_rows(TABLES.read_text(encoding="utf-8"))


def test_the_tables_are_read_and_no_id_is_given_twice():
    assert len(ROWS) >= 32
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_fault_has_tests_that_are_there_or_a_reason(row):
    assert complaint(row) is None


@pytest.mark.parametrize(
    "proof",
    [
        "`test_faults.py::test_that_nobody_wrote`",
        "`test_faults.py::complaint`",
        "`nowhere/test_gone.py::test_the_tables_are_read_and_no_id_is_given_twice`",
        "`test_faults.py::test_the_tables_are_read_and_no_id_is_given_twice` `test_faults.py::test_gone`",
        "fine",
        "it cannot happen here because I say so",
    ],
)
def test_a_bad_proof_would_be_noticed(proof):
    assert complaint(Row("X1", "a fault", "something", proof)) is not None


@pytest.mark.parametrize("line", ["| X1 | a fault | something |", "| X1 | a fault | | a reason. |", "| X1 |"])
def test_a_row_that_lacks_a_cell_would_be_noticed(line):
    with pytest.raises(ValueError, match="a row needs"):
        read_rows(line)


def test_a_reason_may_stand_for_a_test():
    assert complaint(Row("X1", "a fault", "something", "No thread waits for another, so none can block.")) is None
