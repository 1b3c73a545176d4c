"""What the wheel compiles, and in a run over the wheel that it is what the tests see."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from inspect import isfunction
from pathlib import Path

import pytest

from app import wheel
from app.api.codec import binary
from app.engine.status_reader import is_compiled

ROOT = Path(__file__).parents[1]

COMPILED = pytest.mark.skipif("COMPILED" not in os.environ, reason="the code is not that of the wheel")


def names():
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in wheel.compiled_modules(ROOT)]


def test_every_pattern_names_modules_that_are_there_and_none_twice():
    found = list(wheel.compiled_modules(ROOT))
    assert all((ROOT / path).is_file() for path in found)
    assert len(found) == len(set(found)) > len(wheel.COMPILED)


def test_a_pattern_that_names_nothing_is_told(tmp_path):
    (tmp_path / "app").mkdir()
    with pytest.raises(FileNotFoundError, match="nothing matches app/scheduling"):
        list(wheel.compiled_modules(tmp_path))


@COMPILED
@pytest.mark.parametrize("name", names())
def test_what_is_compiled_is_what_the_tests_see(name):
    file = import_module(name).__file__
    assert file is not None
    assert Path(file).suffix == ".so"


def test_the_status_says_which_code_runs():
    assert is_compiled() == ("COMPILED" in os.environ)


@COMPILED
def test_what_is_compiled_is_what_a_process_sees_that_a_test_starts():
    script = "import app.scheduling.scheduler as module; print(module.__file__)"
    told = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).suffix == ".so"


@pytest.mark.parametrize("name", ["pack", "rows_as_bytes", "unpack_bytes"])
def test_what_takes_long_in_a_thread_is_never_compiled(name):
    """Compiled code lets no other thread run before it is done: the event loop would wait for a million elements."""
    assert isfunction(getattr(binary, name))


@pytest.mark.parametrize("path", sorted(map(str, wheel.compiled_modules(ROOT))))
def test_nothing_compiled_awaits_while_it_handles_an_exception(path):
    """It would leave the exception behind as that of the thread: each later one holds it, and all those before."""
    handling = []
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            handling += node.body
        elif isinstance(node, ast.Try):
            handling += node.finalbody
    assert not [each.lineno for part in handling for each in ast.walk(part) if isinstance(each, ast.Await)]
