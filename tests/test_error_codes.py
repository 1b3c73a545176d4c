"""The README's table of error codes: every code, with its status, what a fallback does, and how it is counted."""

import ast
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from app.api import failures, malformed
from app.api.errors import HTTP_STATUS
from app.api.exchange import Reply
from app.engine.engine import ESCAPES
from app.runtime.accounts import DROP_REASONS
from app.scaleout import proxy_config

ROOT = Path(__file__).parents[1]

KINDS = {kind.__name__: kind for kind in HTTP_STATUS}


def narrowed(tree: ast.AST) -> set[tuple[str, int]]:
    """Codes that are given to an error of ours where it is raised, with the status of its class."""
    found = set()
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        kind = KINDS.get(call.func.id) if isinstance(call.func, ast.Name) else None
        given = [each.value for each in call.keywords if each.arg == "reason" and isinstance(each.value, ast.Constant)]
        if kind is not None and given:
            found.add((str(given[0].value), HTTP_STATUS[kind]))
    return found


def codes() -> dict[str, set[int]]:
    """Code → statuses: of classes, single raises, routes, doors, and the proxy in front of several workers."""
    found = {(kind.reason, status) for kind, status in HTTP_STATUS.items()}
    for path in sorted((ROOT / "app").rglob("*.py")):
        found |= narrowed(ast.parse(path.read_text(encoding="utf-8")))
    found |= {(code, status) for status, code in failures.CODES.items()}
    replies = [reply for reply in vars(malformed).values() if isinstance(reply, Reply)]
    found |= {(json.loads(b"".join(reply.body))["code"], reply.status) for reply in replies}
    found |= {(code, status) for status, (code, _) in proxy_config._ERRORS.items()}
    found.add(("worker_unavailable", 503))  # of a worker that gives no code, nor a status
    told = defaultdict(set)
    for code, status in found:
        told[code].add(status)
    return told


def expected() -> dict[str, tuple[str, str, str]]:
    """Code → status, fallback and metric, as the table has them."""
    escaped = {kind.reason for kind in ESCAPES}
    return {
        code: (
            ", ".join(str(status) for status in sorted(statuses)),
            "yes" if code in escaped else "",
            f"`{DROP_REASONS[code]}`" if code in DROP_REASONS else "",
        )
        for code, statuses in codes().items()
    }


def told() -> dict[str, tuple[str, str, str]]:
    """What the table says."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^### Errors$(.*?)^##", text, re.MULTILINE | re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    return {code.strip("`"): (status, fallback, metric) for code, status, _, fallback, metric in rows}


def test_the_readme_has_every_code_as_the_code_has_it():
    assert told() == expected()


@pytest.mark.parametrize(
    "code", ["infeasible_dispatch", "deadline_infeasible", "load_failed", "no_worker", "not_found"]
)
def test_codes_are_found_wherever_they_are_given(code):
    assert code in codes()
