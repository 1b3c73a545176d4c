"""Is device time shared by weight? Two models, of about 1 ms and 20 ms per execution, that always have work queued.

Weights 3:1, then 1:1, then 1:3, each set by `/admin/set_policy` while the load goes on. After each change the averages
get time to forget; then the device time of each model is read from the server's counters.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from load_tests.holding import serving
from load_tests.models import write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, progress, spread, verdict
from load_tests.treadmill import WIDTH, treadmill, turn_seconds
from load_tests.wire import infer_call, random_rows
from load_tests.wrk import background

#: Seconds that one execution of each model takes.
MODELS = {"cheap": 0.001, "dear": 0.02}

#: Weights of the models in each phase.
PHASES = ((3.0, 1.0), (1.0, 1.0), (1.0, 3.0))

#: Connections of each model. The cheap one empties its queue faster than clients can be told.
CONNECTIONS = {"cheap": 64, "dear": 24}

ROWS, SIZES = 2, (1, 2, 4)

#: Least requests in each queue: three of the largest executions.
LEAST_QUEUED = 3 * SIZES[-1] // ROWS

#: Half-life of the averages: what was used before a change of weights has to be forgotten before the shares are right.
HALFLIFE_SECONDS = 2.0
SETTLE_SECONDS = 2.5 * HALFLIFE_SECONDS

LOOKS_PER_SECOND = 20

_TOKEN = "load-test"


@dataclass(frozen=True)
class Seen:
    """One phase: the share of the cheap model and its target, the part of the time that the device computed."""

    share: float
    target: float
    busy: float
    least_queued: int


def set_weights(server: Server, weights: Sequence[float]) -> None:
    """Change the policies of the running server."""
    for name, weight in zip(MODELS, weights, strict=True):
        body = json.dumps({"model": name, "weight": weight}).encode()
        server.post("/admin/set_policy", body, {"Authorization": f"Bearer {_TOKEN}"})


def watch(server: Server, weights: Sequence[float], seconds: float) -> Seen:
    """Read the counters over so many seconds, and how many requests wait all the while; print a line."""
    before, begun = {name: serving(server, name) for name in MODELS}, time.monotonic()
    least = dict.fromkeys(MODELS, sys.maxsize)
    while time.monotonic() < begun + seconds:
        time.sleep(1 / LOOKS_PER_SECOND)
        least = {name: min(depth, serving(server, name)["queue_depth"]) for name, depth in least.items()}
    after, length = {name: serving(server, name) for name in MODELS}, time.monotonic() - begun
    used, executions, requests = (
        {name: after[name][what] - before[name][what] for name in MODELS}
        for what in ("compute_seconds", "dispatches", "requests")
    )
    total = sum(used.values())
    target = weights[0] / sum(weights)
    cheap, dear = (
        f"{name} {used[name] / total:.3f} ({used[name] / executions[name] * 1e3:.1f} ms × {executions[name]}, "
        f"{requests[name] / executions[name]:.2f} requests each, queued ≥ {least[name]})"
        for name in MODELS
    )
    print(f"{weights[0]:g}:{weights[1]:g}  {cheap}, {dear}; device busy {total / length:.0%}", flush=True)
    return Seen(used["cheap"] / total, target, total / length, min(least.values()))


def measure(server: Server, rounds: int, seconds: float) -> list[Seen]:
    """All phases in turn, while wrk keeps both queues filled."""
    seen = []
    with ExitStack() as stack:
        for name, connections in CONNECTIONS.items():
            call = infer_call(name, {"x": random_rows(ROWS, WIDTH)})
            stack.enter_context(background(server, call, connections))
        for turn in range(rounds):
            progress(f"round {turn + 1} of {rounds}")
            for weights in PHASES:
                set_weights(server, weights)
                time.sleep(SETTLE_SECONDS)
                seen.append(watch(server, weights, seconds))
    return seen


def main(argv: Sequence[str] | None = None) -> int:
    """Print the shares; 1 when one was off, or when the clients did not keep the queues filled."""
    parser = argparse.ArgumentParser(prog="shares", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5, help="length of one phase, after it has settled")
    parser.add_argument("--limit", type=float, default=0.05, help="most distance of a share from its target")
    arguments = parser.parse_args(argv)
    print(machine())
    turn = turn_seconds()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, cost in MODELS.items():
            manifest = f'format_version: "1"\nbatching: {{compiled_batch_sizes: {list(SIZES)}}}\n'
            write_bundle(root / "bundles", name, treadmill(round(cost / turn)), manifest)
        settings = {
            "CACHE_DIR": str(root / "cache"),
            "RUNTIME_INTRA_OP_THREADS": "1",
            "SCHEDULER_DISCIPLINE": "fair",
            "SCHEDULER_EMA_HALFLIFE_SECONDS": str(HALFLIFE_SECONDS),
            "ENDPOINTS_ADMIN_TOKEN": _TOKEN,
        }
        with inference_server(root / "bundles", **settings) as server:
            seen = measure(server, arguments.rounds, arguments.seconds)
    shares = "; ".join(
        f"{weights[0]:g}:{weights[1]:g} {spread([each.share for each in seen[phase :: len(PHASES)]], '.3f')}"
        for phase, weights in enumerate(PHASES)
    )
    distance = max(abs(each.share - each.target) for each in seen)
    queued = min(each.least_queued for each in seen)
    text = (
        f"share of the cheap model {shares}: at most {distance:.3f} off (limit {arguments.limit:g}); "
        f"at least {queued} requests queued for each (limit {LEAST_QUEUED})"
    )
    return verdict(distance <= arguments.limit and queued >= LEAST_QUEUED, text)


if __name__ == "__main__":
    sys.exit(main())
