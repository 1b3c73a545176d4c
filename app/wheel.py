"""`python -m app.wheel DIRECTORY` makes a wheel for this platform in which the code of every request is compiled.

mypyc makes C of typed Python: the same code, in about 0.6 of the time. Compiled is what decides, queues, dispatches,
reads requests and writes answers; the rest stays as it is, and so does every module of an editable install. It needs a
C compiler, and what the extra `build` brings.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]

#: Patterns below `app/`: what runs for each request or each dispatch, and the classes whose attributes that reads. Not
#: what hooks are given, since compiled classes cannot be pickled, copied or subclassed; nor what works for long in a
#: thread of its own, since compiled code lets no other thread run before it is done.
COMPILED = (
    "scheduling/*.py", "scheduling/disciplines/*.py",
    "api/access.py", "api/admission.py", "api/answers.py", "api/connection.py", "api/exchange.py", "api/fastpath.py",
    "api/headers.py", "api/inference.py", "api/journal.py", "api/limits.py", "api/patience.py", "api/response.py",
    "api/server_timing.py", "api/slices.py", "api/story.py", "api/turns.py",
    "api/codec/head.py", "api/codec/recent.py", "api/codec/reply.py", "api/codec/request.py", "api/codec/slots.py",
    "engine/engine.py", "engine/expiry.py", "engine/leases.py", "engine/pieces.py", "engine/request.py",
    "repository/bundle.py",
    "runtime/accounts.py", "runtime/batch.py", "runtime/dispatcher.py", "runtime/executor.py", "runtime/pending.py",
    "runtime/recent.py", "runtime/registry.py", "runtime/weights.py",
)  # fmt: skip

_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

make = "bdist_wheel" in sys.argv  # and not when only the metadata are asked for
setup(ext_modules=mypycify({modules!r}, opt_level="3", debug_level="0") if make else [])
"""


def compiled_modules(root: Path = ROOT) -> Iterator[Path]:
    """The modules to compile, relative to `root`. Raises `FileNotFoundError` for a pattern that matches nothing."""
    for pattern in COMPILED:
        found = sorted((root / "app").glob(pattern))
        if not found:
            raise FileNotFoundError(f"nothing matches app/{pattern}")
        yield from (path.relative_to(root) for path in found)


def build(directory: Path) -> None:
    """Put the wheel into a directory; two minutes, in a checkout. Raises `CalledProcessError`."""
    with TemporaryDirectory() as name:
        tree = Path(name)
        shutil.copytree(ROOT / "app", tree / "app", ignore=shutil.ignore_patterns("__pycache__"))
        for each in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / each, tree)
        modules = [str(path) for path in compiled_modules(tree)]
        (tree / "setup.py").write_text(_SETUP.format(modules=modules))
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(directory.absolute())]
        subprocess.run([*pip, *options, "."], cwd=tree, check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build the wheel; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app.wheel", description=__doc__)
    parser.add_argument("directory", type=Path, help="where to put it")
    try:
        build(parser.parse_args(argv).directory)
    except subprocess.CalledProcessError as failure:
        return int(failure.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
