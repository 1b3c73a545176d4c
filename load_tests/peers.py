"""`peers`: the fastest Python peer, Mosec, with the same model in the same run, by the same client, in turn.

Mosec (a Rust front, a Python worker) gets raw rows, the least that can be sent; ours the V2 protocol. Several of its
batching settings are tried first, and the best is kept. `make .venv/peers` makes the environment that it runs in.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, child, cpu_of, family, free_port, inference_server
from load_tests.report import machine, progress, spread, verdict
from load_tests.wire import InferCall, infer_call, random_rows
from load_tests.wrk import Figures, drive

WIDTHS = (64, 128, 10)
CONNECTIONS = 32

#: Largest batch and wait in milliseconds; Mosec waits for one at least.
SETTINGS = ((32, 1), (16, 1), (8, 1))

PYTHON = Path(__file__).parents[1] / ".venv" / "peers" / "bin" / "python"


@dataclass(frozen=True)
class Family(Server):
    """A server of several processes."""

    def cpu(self) -> tuple[float, float]:
        """Seconds of all of them; which mode they were in is not told apart."""
        return cpu_of(family(self.pid)), 0.0


@contextmanager
def mosec(model_file: Path, batch: int, wait_ms: int) -> Iterator[Family]:
    """A Mosec server until the block ends."""
    port = free_port()
    arguments = [str(PYTHON), str(Path(__file__).with_name("peer_mosec.py")), "--port", str(port)]
    arguments += ["--address", "127.0.0.1", "--log-level", "error"]
    env = {
        "PEER_MODEL": str(model_file),
        "PEER_WIDTH": str(WIDTHS[0]),
        "PEER_BATCH": str(batch),
        "PEER_WAIT_MS": str(wait_ms),
    }
    with child(arguments, env, port, "/metrics") as server:
        yield Family(server.url, server.pid)


def same_answers(ours: Server, our_call: InferCall, theirs: Server, call: InferCall) -> bool:
    """Whether both compute the same."""
    size = WIDTHS[-1] * 4
    left = np.frombuffer(ours.post(our_call.path, our_call.body, our_call.headers)[-size:], np.float32)
    right = np.frombuffer(theirs.post(call.path, call.body, call.headers), np.float32)
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-4, atol=1e-5))


def best(running: Mapping[tuple[int, int], Family], call: InferCall) -> tuple[int, int]:
    """The setting that answers most in a short trial."""
    rates = {}
    for setting, server in running.items():
        drive(server, call, CONNECTIONS, 1)
        rates[setting] = drive(server, call, CONNECTIONS, 2).rate
        progress(f"Mosec with batches up to {setting[0]}, waiting {setting[1]} ms: {rates[setting]:.0f} requests/s")
    return max(rates, key=rates.__getitem__)


def alternate(servers: Mapping[str, tuple[Server, InferCall]], rounds: int, seconds: int) -> dict[str, list[Figures]]:
    """A B A B; a line for each run."""
    runs: dict[str, list[Figures]] = {name: [] for name in servers}
    print(f"{'server':>8} {'req/s':>8} {'p50 µs':>8} {'p99 µs':>8} {'CPU µs':>7} errors")
    for _ in range(rounds):
        for name, (server, call) in servers.items():
            run = drive(server, call, CONNECTIONS, seconds)
            runs[name].append(run)
            print(
                f"{name:>8} {run.rate:8.0f} {run.p50 * 1e6:8.0f} {run.p99 * 1e6:8.0f} {run.cpu * 1e6:7.1f} "
                f"{run.errors:6}",
                flush=True,
            )
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Print both and the ratios; 1 where ours answers fewer requests per second."""
    parser = argparse.ArgumentParser(
        prog="python -m load_tests peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=5, help="length of one run")
    parser.add_argument("--limit", type=float, default=1.0, help="least requests/s, × Mosec's (1)")
    options = parser.parse_args(argv)
    if not PYTHON.exists():
        return verdict(False, "there is no .venv/peers: make .venv/peers")
    print(machine())
    ours_call = infer_call("mlp", {"x": random_rows(1, WIDTHS[0])})
    raw_call = InferCall("/inference", random_rows(1, WIDTHS[0]).tobytes())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        model_file = write_bundle(Path(folder, "bundles"), "mlp", mlp(WIDTHS))
        ours = running.enter_context(inference_server(Path(folder, "bundles"), CACHE_DIR=str(Path(folder, "cache"))))
        peers = {setting: running.enter_context(mosec(model_file, *setting)) for setting in SETTINGS}
        setting = best(peers, raw_call)
        print(f"Mosec with batches up to {setting[0]}, waiting {setting[1]} ms")
        if not same_answers(ours, ours_call, peers[setting], raw_call):
            return verdict(False, "the two do not compute the same")
        drive(ours, ours_call, CONNECTIONS, 2)
        runs = alternate(
            {"ours": (ours, ours_call), "mosec": (peers[setting], raw_call)}, options.rounds, options.seconds
        )
    pairs = list(zip(runs["ours"], runs["mosec"], strict=True))
    rates = [ours.rate / theirs.rate for ours, theirs in pairs]
    errors = sum(run.errors for pair in pairs for run in pair)
    text = (
        f"{spread(rates)} × the requests/s of Mosec at {CONNECTIONS} connections (limit {options.limit:g}), CPU per "
        f"request {spread([ours.cpu / theirs.cpu for ours, theirs in pairs])} ×, {errors} errors"
    )
    return verdict(median(rates) >= options.limit and not errors, text)


if __name__ == "__main__":
    sys.exit(main())
