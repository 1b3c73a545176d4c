"""Keeps the device of a server busy with one execution for as long as one likes."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from load_tests.connections import PATIENCE_SECONDS, Connection
from load_tests.counters import counted
from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, inference_server
from load_tests.treadmill import stopwatch
from load_tests.wire import InferCall, head_of, infer_call, random_rows

#: Name of the bundle, a `treadmill.stopwatch`, that a server needs for it.
STOPWATCH = "stopwatch"

#: Between two looks at the status, which cost the server time.
LOOK_SECONDS = 0.002

_TIMED = 500_000


@contextmanager
def server_with(model: str, width: int) -> Iterator[Server]:
    """A server with the stopwatch, on one thread, and a tiny model of that name that takes and gives `width` floats."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_bundle(root / "bundles", STOPWATCH, stopwatch())
        write_bundle(root / "bundles", model, mlp((width, width)))
        with inference_server(root / "bundles", CACHE_DIR=str(root / "cache"), RUNTIME_INTRA_OP_THREADS="1") as server:
            yield server


def turns_per_second(server: Server) -> float:
    """How fast the stopwatch of this server turns."""
    call, before = _turning(_TIMED), counted(server, STOPWATCH)
    server.post(call.path, call.body, call.headers)
    return _TIMED / (counted(server, STOPWATCH) - before).compute_seconds


@contextmanager
def holding(server: Server, turns: float) -> Iterator[Connection]:
    """One execution of so many turns runs while the block does; it is ended with it, as its only caller leaves."""
    call = _turning(round(turns))
    with Connection(server) as caller:
        caller.send(head_of(call) + call.body)
        until(server, STOPWATCH, held)
        yield caller
    until(server, STOPWATCH, lambda now: not now["in_flight"])


def held(serving: dict[str, Any]) -> bool:
    """Whether the one request of the stopwatch is in execution: it has come, and left the queue."""
    return bool(serving["in_flight"] == 1 and serving["queue_depth"] == 0)


def serving(server: Server, name: str) -> dict[str, Any]:
    """What `/status` says of a model that serves."""
    return next(model["serving"] for model in server.models() if model["name"] == name)


def until(server: Server, name: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look at a model in `/status` over and over until it is so; what it said then. Raises `RuntimeError`."""
    given_up = time.monotonic() + PATIENCE_SECONDS
    while not reached(found := serving(server, name)):
        if time.monotonic() > given_up:
            raise RuntimeError(f"model {name!r} never came to what was waited for: {found}")
        time.sleep(LOOK_SECONDS)
    return found


def _turning(turns: int) -> InferCall:
    return infer_call(STOPWATCH, {"x": random_rows(1, 1), "turns": np.array([[turns]])})
