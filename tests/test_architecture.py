"""The rules of the house that no linter checks."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MODULES = sorted((ROOT / "app").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MOST_LINES = 300
MOST_FUNCTION_LINES = 50

BANNED_NAMES = ("utils", "common", "helpers", "helper", "misc", "shared")

#: Read as one word, so that this file does not hold them.
UNFINISHED = ["".join(parts) for parts in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"))]

#: Bases whose subclasses override nothing.
ROOTS = {"Protocol", "Generic", "Enum", "StrEnum", "NamedTuple", "Exception", "BaseModel"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of the module, with the last part of what is called."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            called = node.func
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""), node


def public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """The public functions, classes and methods that a body defines; what overrides is described where it began."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef) and {ast.unparse(base).split("[")[0] for base in node.bases} <= ROOTS:
                yield from public(node.body)


def every(check) -> list[str]:
    """The modules that a check complains of."""
    return [f"{name_of(path)}: {complaint}" for path in MODULES for complaint in check(path)]


def test_every_module_says_its_one_idea():
    assert not every(lambda path: [] if ast.get_docstring(tree(path)) else ["no docstring"])


def test_every_public_name_has_a_docstring():
    assert not every(lambda path: [node.name for node in public(tree(path).body) if not ast.get_docstring(node)])


def test_no_module_is_longer_than_it_may_be():
    def complaints(path):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        return [f"{lines} lines"] if lines > MOST_LINES else []

    assert not every(complaints)


def test_no_function_is_longer_than_it_may_be():
    def complaints(path):
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    yield f"{node.name} has {lines} lines"

    assert not every(complaints)


def test_no_module_is_a_drawer_for_everything():
    assert not every(lambda path: [path.stem] if path.stem in BANNED_NAMES or path.stem.startswith("base_") else [])


def test_there_is_one_lock():
    """The scheduler's. What else is shared is owned by one thread, immutable, or swapped as a whole."""
    kinds = {"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Barrier", "Condition"}
    made = [(name_of(path), kind, node) for path in MODULES for kind, node in calls(path) if kind in kinds]
    locks = [(path, kind) for path, kind, node in made if kind != "Condition" or not node.args]
    assert locks == [("app/runtime/dispatcher.py", "Lock")]
    assert {path for path, _, _ in made} == {"app/runtime/dispatcher.py"}


def test_every_thread_has_a_name_and_is_made_in_runtime():
    named = {"Thread": "name", "ThreadPoolExecutor": "thread_name_prefix", "ProcessPoolExecutor": None}
    for path in MODULES:
        for kind, node in calls(path):
            if kind in named:
                assert name_of(path).startswith("app/runtime/")
                assert named[kind] in {keyword.arg for keyword in node.keywords}


def test_no_function_changes_a_global():
    assert not every(lambda path: ["global" for node in ast.walk(tree(path)) if isinstance(node, ast.Global)])


def test_nothing_is_left_unfinished():
    def complaints(path):
        text = path.read_text(encoding="utf-8")
        yield from (word for word in UNFINISHED if word in text)
        yield from (
            "NotImplementedError" for node in ast.walk(tree(path)) if getattr(node, "id", "") == "NotImplementedError"
        )

    assert not every(complaints)


def test_tests_are_functions_without_mocks():
    for path in TESTS:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                assert not node.name.startswith("Test"), name_of(path)
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                )
                assert not [module for module in modules if module.startswith(("unittest", "mock"))], name_of(path)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("app.main", ["ray", "onnxruntime", "pytest", "hypothesis", "httpx", "tritonclient", "skimage", "rich"]),
        ("app.scheduling.scheduler", ["fastapi", "onnxruntime", "onnx", "yaml"]),
        ("app.domain.model", ["pydantic", "fastapi", "onnx"]),
    ],
)
def test_an_import_brings_no_more_than_it_needs(module, absent):
    """A package that is for tests only, or for another layer, would be missed by whoever installs without it."""
    code = f"import sys, {module}; print(*sorted(sys.modules.keys() & {set(absent)}))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
