"""`guard`: how many machine instructions one decision, one decode, one encode and one dispatch take.

Times differ from minute to minute where others use the machine; these counts do not, so that a change that makes the
hot path dearer is seen anywhere. They are counted by valgrind's callgrind, and compared with those on record in
`counts.json`, by Python's minor version. Another build of the same Python takes a few more or less for everything: each
count is judged relative to a yardstick, a piece of work that is no part of the server.

A count that fell too far is an error as well: it would hide the next rise. `--record` writes the new ones down.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.engine.status_reader import is_compiled
from load_tests.guard.work import MARK, TIMES, WORK
from load_tests.report import verdict

COUNTS = Path(__file__).with_name("counts.json")

#: By so large a part a count may differ from the one on record.
MARGIN = 0.03

LONGEST_SECONDS = 300

YARDSTICK = "yardstick"


def key() -> str:
    """Under which the counts of this interpreter stand; of compiled code, those of the C compiler as well."""
    name = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"
    return name if not is_compiled() else f"{name}, compiled by cc {_compiler()}"


def _compiler() -> str:
    told = subprocess.run(["cc", "-dumpversion"], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def made_with() -> dict[str, str]:
    """What else decides how many instructions there are."""
    return {
        "python": f"{platform.python_version()}, {platform.python_compiler()}",
        **{name: version(name) for name in ("httptools", "numpy", "orjson", "uvicorn", "uvloop")},
    }


def count(names: Sequence[str]) -> dict[str, float]:
    """Instructions of one of each. Raises `RuntimeError` when callgrind does not give them."""
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is not installed (Debian: apt-get install valgrind)")
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={folder}/counts"]
        command += [sys.executable, "-m", "load_tests.guard.work", *names]
        # Nothing of the caller's environment, whose size alone moves the stack; one thread in libraries that have more.
        env = {
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.environ.get("PATH", ""),
            "OPENBLAS_NUM_THREADS": "1",
            **{name: os.environ[name] for name in ("PYTHONPATH", "PYTHONSAFEPATH") if is_compiled()},
        }
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=LONGEST_SECONDS)
        if done.returncode:
            raise RuntimeError(f"callgrind ended with {done.returncode}:\n{done.stderr}")
        found = [_total(Path(folder, f"counts.{number + 1}")) for number in range(4 * len(names))]
    # Of each piece of work there are four marks: before and after the first part, before and after the second.
    return {name: (found[4 * place + 3] - found[4 * place + 1]) / TIMES[name] for place, name in enumerate(names)}


def _total(dump: Path) -> int:
    match = re.search(r"^(?:summary|totals): (\d+)", dump.read_text(), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"callgrind wrote no {dump.name}: does the C library of this Python have {MARK}?")
    return int(match[1])


def judge(known: Mapping[str, float], counted: Mapping[str, float]) -> dict[str, float]:
    """How many times the instructions on record each takes, for an interpreter as fast as that of the record."""
    faster = counted[YARDSTICK] / known[YARDSTICK]
    return {name: counted[name] / known[name] / faster for name in known if name != YARDSTICK and name in counted}


def complaints(known: Mapping[str, float], ratios: Mapping[str, float]) -> list[str]:
    """What is beyond the margin, or was not counted."""
    found = [f"{name} was not counted" for name in known if name != YARDSTICK and name not in ratios]
    for name, ratio in ratios.items():
        if ratio > 1 + MARGIN:
            found.append(f"{name} takes {ratio - 1:.1%} more instructions")
        elif ratio < 1 - MARGIN:
            found.append(
                f"{name} takes {1 - ratio:.1%} fewer: record it (make guard-record), or the next rise is hidden"
            )
    return found


def record(counted: Mapping[str, float]) -> int:
    """Write the counts down."""
    known: dict[str, Any] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    known[key()] = {"made with": made_with(), "instructions": {name: round(each) for name, each in counted.items()}}
    COUNTS.write_text(json.dumps(known, indent=2) + "\n")
    return verdict(True, f"{len(counted)} counts of {key()} are on record in {COUNTS.name}")


def main(argv: Sequence[str] | None = None) -> int:
    """0 within the margin, 1 beyond it or where nothing could be counted.

    Also 0, with the reason, for a Python of which nothing is on record.
    """
    parser = argparse.ArgumentParser(
        prog="python -m load_tests guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write the counts down instead of judging them")
    options = parser.parse_args(argv)
    known = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    if key() not in known and not options.record:
        print(f"skipped: nothing is on record of {key()}; there is of {', '.join(known)}")
        return 0
    try:
        counted = count(tuple(WORK))
    except RuntimeError as error:
        return verdict(False, str(error))
    if options.record:
        for name, each in counted.items():
            print(f"{name:>22} {each:12.0f}")
        return record(counted)
    instructions = known[key()]["instructions"]
    ratios = judge(instructions, counted)
    print(f"{'instructions of one':>22} {'on record':>12} {'now':>12}  ratio")
    for name, each in counted.items():
        before, ratio = instructions.get(name, 0), ratios.get(name)
        print(f"{name:>22} {before:12.0f} {each:12.0f}  {ratio or each / max(before, 1):.3f}")
    if known[key()]["made with"] != made_with():
        print(f"recorded with {known[key()]['made with']}, now {made_with()}")
    wrong = complaints(instructions, ratios)
    return verdict(not wrong, "; ".join(wrong) or f"every count is within {MARGIN:.0%} of the one on record")


if __name__ == "__main__":
    sys.exit(main())
