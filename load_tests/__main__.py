"""`python -m load_tests`: lists the scenarios; runs one by name, or all of them in turn."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

SCENARIOS: Mapping[str, str] = {
    "run": "any workload, open or closed loop, against any server, or settings of an own one side by side",
    "compare": "two results of `run`: exit status 1 where the second is worse",
    "overload": "answers in time, tails and memory in bursts at twice what the server can bear",
    "soak": "memory, CPU and latency over two million requests",
    "peers": "requests/s and CPU per request of a small model, against Mosec",
    "guard": "instructions of one decision, decode, encode and dispatch, and of requests, against those on record",
    "door": "microseconds and bytecode of a small request in one thread, without sockets: no server, no verdict",
    "hot_path": "CPU, latency and rate of one small request, against a bare uvicorn application",
    "coalescing": "how many requests share one execution when many come at once",
    "compute_bound": "rows/s of a heavy model, against ONNX Runtime called in a loop",
    "hooks": "rows/s while pure-Python hooks are busy, in threads and in a process, against idle hooks",
    "shares": "device time of two models by weight, under a load that never lets a queue run dry",
    "expiry": "when a deadline that passes in the queue is answered while the device is busy",
    "disconnects": "what is left of a thousand clients that go away, and of an execution that nobody waits for",
    "pipelines": "what meta models that are asked by many leave of the device to another model",
    "sizing": "rows/s of a model that is slower in large batches, under cost against fill",
    "decisions": "microseconds of a decision among a thousand models, and of queueing at any depth",
    "startup": "time to ready with a filled compile cache, against an empty one",
    "weight_sharing": "memory and speed of all compiled sizes of one model, against one session, and plain ones",
    "catalogue": "answers, bytes on the device and memory with twenty models where six fit, against all of them",
    "churn": "memory, files and threads over hundreds of loads and evictions",
    "large_bodies": "latency of liveness and status while bodies of 50 MB come and go, binary and JSON",
    "beside": "latency of one model and of liveness while a large model compiles and loads, against quiet",
    "through_proxy": "CPU of a request through HAProxy to a worker, against asking the worker directly",
    "net_value": "answers in time of three models that ask for too much, by value against by cost",
    "onnx_suite": "right answers for every model of the ONNX backend tests: make onnx-suite brings them; not in `all`",
    "simulate": "rules of scheduling against each other, on a virtual clock: no server, no verdict",
    "identity": "net value made to be `fill`, decision for decision: no server",
    "workers": "ways of giving requests to several workers against each other, on a virtual clock",
}

#: What takes options of its own, or needs more than the others, or measures nothing of this machine.
APART = frozenset(
    {"run", "compare", "overload", "soak", "peers", "guard", "door", "onnx_suite", "simulate", "identity", "workers"}
)


def run(name: str, options: Sequence[str]) -> tuple[int, str]:
    """Run one scenario in a process of its own, showing what it prints; its exit status and its last line."""
    last = ""
    command = [sys.executable, "-m", f"load_tests.{name}", *options]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, last


def run_all(options: Sequence[str]) -> int:
    """Every measurement in turn, then a summary; 1 when any missed its limit or broke."""
    results = {}
    for name, what in SCENARIOS.items():
        if name in APART:
            continue
        print(f"\n== {name}: {what}", flush=True)
        begun = time.monotonic()
        results[name] = (*run(name, options), time.monotonic() - begun)
    print("\n== summary")
    for name, (status, last, seconds) in results.items():
        print(f"{name:>15} {seconds:5.0f} s, status {status}  {last}")
    return max(status != 0 for status, _, _ in results.values())


def main() -> int:
    """The exit status of the scenario: 0 when it met its limit."""
    listing = "\n".join([f"  {name:<15} {what}" for name, what in SCENARIOS.items()])
    parser = argparse.ArgumentParser(
        prog="python -m load_tests",
        description="Measurements of the server, as ratios within one run.",
        epilog=f"scenarios:\n{listing}\n  {'all':<15} every measurement but {', '.join(sorted(APART))}, and a summary",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenario", nargs="?", choices=[*SCENARIOS, "all"], metavar="scenario", help="one of those below"
    )
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="options of the scenario, such as --rounds 2 or --help"
    )
    arguments = parser.parse_args()
    if arguments.scenario is None:
        parser.print_help()
        return 0
    if arguments.scenario == "all":
        return run_all(arguments.options)
    return run(arguments.scenario, arguments.options)[0]


if __name__ == "__main__":
    sys.exit(main())
