"""Do health checks and status wait while large bodies come and go?

Clients send bodies of 50 MB and take answers as large, as fast as they are served: binary ones, then JSON ones. Beside
them one client asks whether the server lives, and another for its status. The clients with the bodies are processes of
their own and nice: here they share the cores with the server, as in earnest they do not.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import orjson
from onnx import TensorProto, helper

from load_tests.connections import Connection
from load_tests.models import write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, verdict
from load_tests.wire import InferCall, head_of, infer_call, random_rows

#: Rows of a request, and floats of a row: 50 MB as they are, and as JSON.
ROWS, BINARY, JSON = 10, 1_310_720, 480_000

#: From an answer to the next question of the client that asks for `/v2/health/live`, or `/status`.
PAUSE_SECONDS = 0.005

#: When the clients with the bodies have all begun.
WARM_SECONDS = 3.0


@dataclass(frozen=True)
class Seen:
    """Milliseconds that the answers to one route took, and how many there were."""

    p99: float
    longest: float
    answers: int

    def __str__(self) -> str:
        return f"p99 {self.p99:.1f}, longest {self.longest:.1f} ms of {self.answers}"


def binary_call() -> InferCall:
    """50 MB, binary both ways."""
    return infer_call("binary", {"x": random_rows(ROWS, BINARY)})


def json_call() -> InferCall:
    """50 MB of JSON both ways."""
    tensor = {"name": "x", "shape": [ROWS, JSON], "datatype": "FP32", "data": random_rows(ROWS * JSON)}
    body = orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)
    return InferCall("/v2/models/json/infer", body, {"Content-Type": "application/json"})


def ask_over_and_over(url: str, make: Callable[[], InferCall], stop: Event, answered: Any) -> None:
    """A process: one client. It counts its answers, and ends with -1 when one is no success."""
    os.nice(10)
    call = make()
    with Connection(Server(url, 0)) as connection:
        while not stop.is_set():
            connection.send(head_of(call))
            connection.send(call.body)
            status, body = connection.answer()
            if status != 200:
                print(f"{status}: {body[:200]!r}", flush=True)
                answered.value = -1
                return
            answered.value += 1


@contextmanager
def clients(server: Server, count: int, make: Callable[[], InferCall]) -> Iterator[list[Any]]:
    """So many clients at work; the number of answers of each."""
    context = multiprocessing.get_context("spawn")
    stop, answered = context.Event(), [context.Value("i", 0) for _ in range(count)]
    processes = [
        context.Process(target=ask_over_and_over, args=(server.url, make, stop, each), daemon=True) for each in answered
    ]
    for process in processes:
        process.start()
    try:
        yield answered
    finally:
        stop.set()
        for process in processes:
            process.join(60)


def watch(server: Server, path: str, stopped: threading.Event) -> Seen:
    """Ask for a path until it is enough."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    took = []
    with Connection(server) as connection:
        while not stopped.wait(PAUSE_SECONDS):
            begun = time.perf_counter()
            connection.send(request)
            status, body = connection.answer()
            took.append((time.perf_counter() - begun) * 1e3)
            if status != 200:
                raise RuntimeError(f"{path}: {status}: {body!r}")
    return Seen(float(np.percentile(took, 99)), max(took), len(took))


def watched(server: Server, seconds: float) -> tuple[Seen, Seen]:
    """What is seen of liveness and of status in so many seconds."""
    stopped = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        live, status = [pool.submit(watch, server, path, stopped) for path in ("/v2/health/live", "/status")]
        time.sleep(seconds)
        stopped.set()
    return live.result(), status.result()


def echo(width: int) -> onnx.ModelProto:
    """`x` [batch, width] as `y`."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "echo", tensors[:1], tensors[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def beside(server: Server, count: int, make: Callable[[], InferCall], seconds: float, limit: float) -> bool:
    """Print what is seen beside so many clients; whether it is within the limit, and they were served."""
    call = make()
    with clients(server, count, make) as answered:
        begun = time.monotonic()
        while not all(each.value for each in answered) and time.monotonic() < begun + 60:
            time.sleep(0.1)
        time.sleep(WARM_SECONDS)
        before = sum(each.value for each in answered)
        live, status = watched(server, seconds)
        answers = sum(each.value for each in answered) - before
    served = answers > 0 and all(each.value > 0 for each in answered)
    print(
        f"{count} clients with {len(call.body) / 1e6:.0f} MB ({call.path.split('/')[3]}), {answers / seconds:.1f} "
        f"answers/s: live {live}; status {status} (limit {limit:g} ms)",
        flush=True,
    )
    return served and max(live.p99, status.p99) <= limit


def main(argv: Sequence[str] | None = None) -> int:
    """Print what health and status took; 1 when it was too long."""
    parser = argparse.ArgumentParser(prog="large_bodies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="length of each phase")
    parser.add_argument("--binary", type=int, default=8, help="clients with binary bodies")
    parser.add_argument("--json", type=int, default=2, help="clients with JSON bodies")
    parser.add_argument("--limit", type=float, default=20, help="largest 99th percentile beside binary bodies, in ms")
    parser.add_argument("--json-limit", type=float, default=50, help="and beside JSON")
    arguments = parser.parse_args(argv)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = f'format_version: "1"\nbatching: {{compiled_batch_sizes: [{ROWS}]}}\n'
        write_bundle(root / "bundles", "binary", echo(BINARY), manifest)
        write_bundle(root / "bundles", "json", echo(JSON), manifest)
        with inference_server(root / "bundles", CACHE_DIR=str(root / "cache")) as server:
            live, status = watched(server, arguments.seconds / 4)
            print(f"quiet: live {live}; status {status}", flush=True)
            met = [
                beside(server, arguments.binary, binary_call, arguments.seconds, arguments.limit),
                beside(server, arguments.json, json_call, arguments.seconds, arguments.json_limit),
            ]
    return verdict(all(met), "health and status beside large bodies")


if __name__ == "__main__":
    sys.exit(main())
