"""The cost of one small request: our server against a bare uvicorn application that answers the same bytes."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from app.engine.status_reader import is_compiled
from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, ThreadCost, bare_echo, inference_server, threads_of
from load_tests.report import machine, spread, verdict
from load_tests.wire import InferCall, infer_call, random_rows
from load_tests.wrk import Figures, drive

WIDTHS = (64, 128, 10)

#: At so many connections the limit counts.
JUDGED = 32

Pairs = list[tuple[Figures, Figures]]


def measure(ours: Server, echo: Server, call: InferCall, connections: int, rounds: int, seconds: int) -> Pairs:
    """Ours and the echo in turn; a line for each run."""
    pairs = []
    for _ in range(rounds):
        pair = drive(ours, call, connections, seconds), drive(echo, call, connections, seconds)
        for name, run in zip(("ours", "echo"), pair, strict=True):
            print(
                f"{connections:11} {name:>6} {run.rate:8.0f} {run.p50 * 1e6:8.0f} {run.p99 * 1e6:8.0f} "
                f"{run.cpu * 1e6:7.1f} = {run.user * 1e6:5.1f} + {run.system * 1e6:5.1f} {run.errors:6}",
                flush=True,
            )
        pairs.append(pair)
    return pairs


def cost_by_thread(server: Server, call: InferCall, connections: int, seconds: int) -> None:
    """Print where our server spends its time, from the kernel's accounting of every thread."""
    before = threads_of(server)
    requests = max(drive(server, call, connections, seconds).requests, 1)
    print(f"\nby thread, per request at {connections} connections: µs in user and system mode, and how often it")
    print("gave up its core to wait (for the socket, the interpreter, the lock) or lost it")
    unseen = ThreadCost(0.0, 0.0, 0, 0)
    for task, now in sorted(threads_of(server).items()):
        was = before.get(task, unseen)
        name = "event loop" if task == server.pid else "thread"
        user, system = (now.user - was.user) * 1e6 / requests, (now.system - was.system) * 1e6 / requests
        if user + system > 0.05:
            print(
                f"{name:>18} {user:7.1f} + {system:5.1f}, {(now.yields - was.yields) / requests:.2f} waits, "
                f"{(now.preemptions - was.preemptions) / requests:.3f} lost"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure A B A B and print ratios; 1 when the ratio is above the limit."""
    parser = argparse.ArgumentParser(prog="hot_path", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=4, help="length of one run")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, JUDGED, 64])
    parser.add_argument("--threads", action="store_true", help="also show what each thread of our server costs")
    parser.add_argument(
        "--limit",
        type=float,
        default=1.3 if is_compiled() else 1.5,
        help="most CPU per request at 32 connections, × the echo's (1.3 compiled, 1.5 in plain Python)",
    )
    arguments = parser.parse_args(argv)
    call = infer_call("mlp", {"x": random_rows(1, WIDTHS[0])})
    ratios: dict[int, float] = {}
    errors = 0
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_bundle(root / "bundles", "mlp", mlp(WIDTHS))
        with inference_server(root / "bundles", CACHE_DIR=str(root / "cache")) as ours:
            (root / "answer").write_bytes(ours.post(call.path, call.body, call.headers))
            with bare_echo(root / "answer") as echo:
                print("connections server    req/s   p50 µs   p99 µs  CPU µs = user + system errors")
                for connections in arguments.connections:
                    pairs = measure(ours, echo, call, connections, arguments.rounds, arguments.seconds)
                    errors += sum(run.errors for pair in pairs for run in pair)
                    costs = [a.cpu / b.cpu for a, b in pairs]
                    ratios[connections] = median(costs)
                    print(
                        f"{connections:11} ours / echo: CPU per request {spread(costs)}, "
                        f"p50 {spread([a.p50 / b.p50 for a, b in pairs])}, "
                        f"requests/s {spread([a.rate / b.rate for a, b in pairs])}"
                    )
                if arguments.threads:
                    cost_by_thread(ours, call, JUDGED, arguments.seconds)
    if errors:
        return verdict(False, f"{errors} requests failed")
    if JUDGED not in ratios:
        return verdict(True, f"nothing is judged without --connections {JUDGED}")
    text = f"{ratios[JUDGED]:.2f} × the echo's CPU per request at {JUDGED} connections (limit {arguments.limit:g})"
    return verdict(ratios[JUDGED] <= arguments.limit, text)


if __name__ == "__main__":
    sys.exit(main())
