"""Does a server that loads and evicts all day stay as it is? Memory, open files and threads over hundreds of cycles.

A cycle is one load and one eviction, in each of three ways: requests for two models in turn where the device holds one;
an operator who takes weights off the device and brings them back; an operator who unloads a model and loads it again.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from load_tests.connections import Connection
from load_tests.holding import serving
from load_tests.memory import Held, held_by, megabytes
from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, progress, verdict
from load_tests.wire import head_of, infer_call, random_rows

#: 23 MB of weights, twice that in the compile cache: sessions that are kept show at once.
WIDTHS, SIZES = (256, 2300, 2300, 64), (1, 8)

MODELS = ("a", "b")

CALLS = {name: infer_call(name, {"x": random_rows(1, WIDTHS[0])}) for name in MODELS}

#: Enough for one of the two.
ARENA_BYTES = 70_000_000

#: Cycles at either end that are compared, after as many to settle down.
WINDOW = 100

_TOKEN = "load-test"


@dataclass(frozen=True)
class Way:
    """What a cycle is, and the settings of a server on which it can be done."""

    cycle: Callable[[Server, int], None]
    settings: Mapping[str, str]


def on_demand(server: Server, turn: int) -> None:
    """A request for the model that is not on the device."""
    ask(server, MODELS[turn % len(MODELS)])


def by_residency(server: Server, _turn: int) -> None:
    """An operator takes the weights off the device and brings them back."""
    for residency in ("system", "device"):
        tell(server, "/admin/set_residency", model=MODELS[0], residency=residency)
    ask(server, MODELS[0])


def by_repository(server: Server, _turn: int) -> None:
    """An operator unloads the model and loads it again."""
    for action in ("unload", "load"):
        tell(server, f"/v2/repository/models/{MODELS[0]}/{action}")
    ask(server, MODELS[0])


EXPLICIT = {"MODEL_CONTROL_MODE": "explicit", "STARTUP_MODELS": "*"}

WAYS: Mapping[str, Way] = {
    "on demand": Way(on_demand, {"RUNTIME_DEVICE_MEMORY_BYTES": str(ARENA_BYTES)}),
    "by set_residency": Way(by_residency, EXPLICIT),
    "by repository": Way(by_repository, EXPLICIT),
}


def ask(server: Server, name: str) -> None:
    """One request. Raises `RuntimeError` unless it is answered."""
    call = CALLS[name]
    with Connection(server) as connection:
        connection.send(head_of(call) + call.body)
        status, body = connection.answer()
    if status != 200:
        raise RuntimeError(f"model {name!r} answered {status}: {body!r}")


def tell(server: Server, path: str, **body: str) -> None:
    """A command of an operator."""
    server.post(path, json.dumps(body).encode(), {"Authorization": f"Bearer {_TOKEN}"})


def turn_over(server: Server, way: Way, cycles: int) -> list[Held]:
    """What the server holds after each cycle. Raises `RuntimeError` when weights did not move as they should."""
    held = []
    for turn in range(cycles):
        way.cycle(server, turn)
        held.append(held_by(server.pid))
    if way.cycle is not by_repository:  # which makes a new model, with counters of its own
        evicts = sum(serving(server, name)["weight_evicts"] for name in MODELS)
        if evicts < cycles - 1:
            raise RuntimeError(f"only {evicts} evictions in {cycles} cycles")
    return held


@dataclass(frozen=True)
class Growth:
    """What changed from the first window to the last: memory as a part, files and threads in number, at most."""

    memory: float
    files: int
    threads: int


def compare(name: str, held: Sequence[Held]) -> Growth:
    """Print and return how the last cycles differ from the first, but for those to settle down."""
    first, last = held[WINDOW : 2 * WINDOW], held[-WINDOW:]
    before, after = (mean(each.memory for each in window) for window in (first, last))
    files, threads = (
        max(getattr(each, what) for each in last) - max(getattr(each, what) for each in first)
        for what in ("files", "threads")
    )
    print(
        f"{name}, {len(held)} cycles: memory {megabytes(before)} on average over cycles {WINDOW} to "
        f"{2 * WINDOW}, {megabytes(after)} over the last {WINDOW} ({after / before - 1:+.2%}); {last[-1].files} files "
        f"({files:+}), {last[-1].threads} threads ({threads:+})",
        flush=True,
    )
    return Growth(after / before - 1, files, threads)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was held; 1 when it grew."""
    parser = argparse.ArgumentParser(prog="churn", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=500, help=f"at least {3 * WINDOW}")
    parser.add_argument("--limit", type=float, default=0.03, help="most growth of memory, as a part")
    arguments = parser.parse_args(argv)
    if arguments.cycles < 3 * WINDOW:
        parser.error(f"argument --cycles: at least {3 * WINDOW}")
    print(machine())
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = f'format_version: "1"\nbatching: {{compiled_batch_sizes: {list(SIZES)}}}\n'
        for seed, name in enumerate(MODELS):
            write_bundle(root / "bundles", name, mlp(WIDTHS, seed), manifest)
        settings = {"CACHE_DIR": str(root / "cache"), "ENDPOINTS_ADMIN_TOKEN": _TOKEN}
        for turn in range(arguments.rounds):
            for name, way in WAYS.items():
                progress(f"{name}, round {turn + 1} of {arguments.rounds}")
                with inference_server(root / "bundles", **settings, **way.settings) as server:
                    found.append(compare(name, turn_over(server, way, arguments.cycles)))
    most = max(found, key=lambda each: abs(each.memory)).memory
    files, threads = (max(getattr(each, what) for each in found) for what in ("files", "threads"))
    text = f"memory {most:+.2%} at most (limit {arguments.limit:.0%}), files {files:+}, threads {threads:+} (limit 0)"
    return verdict(abs(most) <= arguments.limit and files <= 0 and threads <= 0, text)


if __name__ == "__main__":
    sys.exit(main())
