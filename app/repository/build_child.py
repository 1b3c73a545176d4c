"""Runs one build file, in a process of its own: `python build_child.py BUILD_FILE SOURCE TARGET`.

Nothing of the server is imported here: a build file may import and leave behind what it likes.
"""

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main(script: str, source: str, target: str) -> None:
    """Call the file's `build`, and look whether it wrote a model. Raises what it raises."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.nice(10)  # serving comes first
    build = runpy.run_path(script, run_name="bundle build").get("build")
    if not callable(build):
        raise TypeError("it defines no function build(source, target)")
    build(Path(source), Path(target))
    if not Path(target, "model.onnx").is_file():
        raise FileNotFoundError("it left no model.onnx in the directory target")


if __name__ == "__main__":
    main(*sys.argv[1:])
