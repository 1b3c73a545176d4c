"""What HAProxy costs: server CPU per request through the proxy of a node, against its worker asked directly."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, child, free_port
from load_tests.report import machine, spread, verdict
from load_tests.wire import InferCall, infer_call, random_rows
from load_tests.wrk import drive

#: Small: 256 bytes in. Large: 5 MB in, hardly anything to compute.
SMALL, LARGE = (64, 128, 10), (1_310_720, 1)

#: Name → the request, at so many connections.
CASES = {"small": (SMALL[0], 32), "large": (LARGE[0], 4)}


@dataclass(frozen=True)
class Together(Server):
    """A server whose processes are counted as one."""

    others: tuple[Server, ...] = ()

    def cpu(self) -> tuple[float, float]:
        """User and system seconds of all of them."""
        used = [Server.cpu(self), *[each.cpu() for each in self.others]]
        return sum(user for user, _ in used), sum(system for _, system in used)


@contextmanager
def node(root: Path) -> Iterator[dict[str, tuple[Server, Server]]]:
    """By model: the worker where it lives, and the node in front of it, proxy and all. Nothing goes elsewhere."""
    write_bundle(root / "bundles", "small", mlp(SMALL))
    write_bundle(root / "bundles", "large", mlp(LARGE), 'format_version: "1"\nbatching: {compiled_batch_sizes: [1]}\n')
    port = free_port()
    settings = {
        "MODEL_DIRS": root / "bundles",
        "CACHE_DIR": root / "cache",
        "DRAIN_DELAY_SECONDS": 0,
        "ENDPOINTS_PORT": port,
        "RUNTIME_DEVICES": "cpu:2",
        "CLUSTER_BASE_PORT": 0,
        "CLUSTER_MODE": "lpt_packing",
        "SCHEDULER_DISCIPLINE": "fifo",
    }
    env = {f"INFERENCE_SERVER_{name}": str(value) for name, value in settings.items()}
    with child([sys.executable, "-m", "app", "serve"], env, port, "/v2/health/ready") as front:
        status = _placed(front)
        workers = {each["name"]: Server(f"http://{each['address']}", each["pid"]) for each in status["workers"]}
        proxy = Server(front.url, _proxy_of(front.pid))
        found: dict[str, tuple[Server, Server]] = {}
        for model in CASES:
            [home] = status["placement"]["models"][model]["workers"]
            found[model] = workers[home], Together(front.url, front.pid, others=(proxy, workers[home]))
        yield found


def _placed(front: Server) -> dict[str, Any]:
    """The status once both models have their place. Raises `RuntimeError` when they get none."""
    status: dict[str, Any] = {}
    for _ in range(300):
        status = json.loads(front.get("/status"))
        if CASES.keys() <= status["placement"]["models"].keys():
            return status
        time.sleep(0.2)
    raise RuntimeError(f"the models were not placed: {json.dumps(status):.2000}")


def _proxy_of(pid: int) -> int:
    """The child that is HAProxy."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(each) for each in children if Path(f"/proc/{each}/comm").read_text().strip() == "haproxy")


def measure(pair: tuple[Server, Server], call: InferCall, connections: int, rounds: int, seconds: int) -> list[float]:
    """Directly and through the proxy in turn, a line for each run; the ratios of CPU per request."""
    ratios = []
    for _ in range(rounds):
        runs = [drive(server, call, connections, seconds) for server in pair]
        for name, run in zip(("direct", "proxied"), runs, strict=True):
            print(
                f"{connections:11} {name:>8} {run.rate:8.0f} {run.p50 * 1e6:8.0f} {run.p99 * 1e6:8.0f} "
                f"{run.cpu * 1e6:8.1f} = {run.user * 1e6:7.1f} + {run.system * 1e6:7.1f}",
                flush=True,
            )
            if run.errors:
                raise RuntimeError(f"{run.errors} requests failed, {name}")
        ratios.append(runs[1].cpu / runs[0].cpu)
    return ratios


def main(argv: Sequence[str] | None = None) -> int:
    """Measure A B A B and print ratios; 1 when one is above the limit."""
    parser = argparse.ArgumentParser(prog="through_proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=3, help="length of one run")
    parser.add_argument("--limit", type=float, default=1.6, help="most CPU per request, × that of the worker alone")
    arguments = parser.parse_args(argv)
    ratios = {}
    print(machine())
    with tempfile.TemporaryDirectory() as folder, node(Path(folder)) as servers:
        for model, (width, connections) in CASES.items():
            print(f"\n{model}: {width * 4} bytes")
            print("connections               req/s   p50 µs   p99 µs   CPU µs = user + system")
            call = infer_call(model, {"x": random_rows(1, width)})
            ratios[model] = measure(servers[model], call, connections, arguments.rounds, arguments.seconds)
            print(f"proxied / direct: CPU per request {spread(ratios[model])}")
    text = ", ".join([f"{model} {median(found):.2f} ×" for model, found in ratios.items()])
    met = all(median(found) <= arguments.limit for found in ratios.values())
    return verdict(met, f"CPU per request through the proxy: {text} (limit {arguments.limit:g})")


if __name__ == "__main__":
    sys.exit(main())
