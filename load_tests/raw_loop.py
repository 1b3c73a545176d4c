"""ONNX Runtime called in a loop by itself: what the device gives when nothing serves.

    python -m load_tests.raw_loop MODEL.onnx --sizes 1 2 4 8 --seconds 2

prints rows/s by batch size as JSON. In a process of its own it has what a server's sessions have.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.backends.threads import usable_cores
from load_tests.wire import FREE_EXTENT

_DTYPES: Mapping[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


def loop(model_file: Path, sizes: Sequence[int], seconds: float) -> dict[int, float]:
    """Rows/s of the model in this process, by batch size: one session with as many threads as the server uses.

    They do not spin between two parallel sections, as the server's do not: where cores are scarce that is faster.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
    rates = {}
    for size in sizes:
        inputs = {each.name: _values(each, size) for each in session.get_inputs()}
        session.run(None, inputs)
        runs, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            session.run(None, inputs)
            runs += 1
        rates[size] = runs * size / (time.perf_counter() - begun)
    return rates


def loop_in_child(model_file: Path, sizes: Sequence[int], seconds: float) -> dict[int, float]:
    """The same in a process of its own, as the server's sessions are; it shares `seconds` between the sizes."""
    command = [sys.executable, "-m", "load_tests.raw_loop", str(model_file), "--seconds", str(seconds / len(sizes))]
    command += ["--sizes", *map(str, sizes)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {int(size): rate for size, rate in json.loads(output).items()}


def _values(declared: Any, size: int) -> NDArray[Any]:
    """Random values for an input of a session: the first axis is the batch where it is open."""
    if declared.type not in _DTYPES:
        raise ValueError(f"input {declared.name!r} is {declared.type}: no values are made for that")
    shape = [extent if isinstance(extent, int) else FREE_EXTENT for extent in declared.shape]
    if shape and not isinstance(declared.shape[0], int):
        shape[0] = size
    dtype, random = np.dtype(_DTYPES[declared.type]), np.random.default_rng(1)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def main(argv: Sequence[str] | None = None) -> int:
    """Print rows/s by batch size; 0."""
    parser = argparse.ArgumentParser(prog="raw_loop", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    arguments = parser.parse_args(argv)
    print(json.dumps(loop(arguments.model, arguments.sizes, arguments.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
