"""Answers in time under `edf` by value, against `edf` by cost: three models of very different cost, in open loop.

Trees of microseconds, a transformer of milliseconds and a convolutional network of tens of milliseconds get requests at
a rate that the device cannot bear, each with the deadline of its model, evenly at random and in bursts; the same
requests for both rules, which take turns.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson

from load_tests.arrivals import merged
from load_tests.cnn import IMAGE, resnet50
from load_tests.models import write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, progress, spread, verdict
from load_tests.wire import InferCall, infer_call, random_rows

BUNDLES = Path(__file__).parents[1] / "bundles"

SIZINGS = ("cost", "value")

ARRIVALS = ("poisson", "gamma4")

#: Device time that each asks for, of all that is asked for; the trees ask for `TREES_RATE` requests per second.
PARTS = {"cnn": 0.6, "filetype": 0.4}
TREES_RATE = 150.0

#: Deadlines: of the large ones in executions of one row, of the trees in executions of the convolutional network.
DEADLINES = {"cnn": 12.0, "filetype": 20.0, "tabular": 1.5}

#: What is answered: in time, or not.
ANSWERED, REFUSED = 200, 504

_MANIFEST = """format_version: "1"
batching: {compiled_batch_sizes: [1, 2, 4]}
"""


class Asked(NamedTuple):
    """One model: its request, what its client allows, and how many come per second."""

    call: InferCall
    deadline_ms: int
    rate: float

    @property
    def bytes(self) -> bytes:
        """What is sent."""
        headers = {**self.call.headers, "X-Request-Timeout-Ms": str(self.deadline_ms)}
        lines = [f"POST {self.call.path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(self.call.body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.call.body


class Clients:
    """Connections that are reused; a request that finds none free opens another."""

    def __init__(self, server: Server) -> None:
        self._host, self._port = urlsplit(server.url).hostname, urlsplit(server.url).port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def status_of(self, request: bytes) -> int:
        """Send a request; the status of its answer."""
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(self._host, self._port)
        writer.write(request)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]))
        except (ConnectionError, asyncio.IncompleteReadError):
            return REFUSED  # before its body was read, and the answer was lost with the connection
        status = int(head.split(b" ", 2)[1])
        if status == ANSWERED:
            self._free.append((reader, writer))
        else:
            writer.close()  # as the server does where it did not read the body
        return status

    def close(self) -> None:
        """End them all."""
        for _, writer in self._free:
            writer.close()


async def offer(server: Server, asked: Mapping[str, Asked], kind: str, seconds: float, seed: int) -> dict[str, float]:
    """Send everything at its time; the part of each model that was answered in time. Raises where anything failed."""
    names = list(asked)
    times, owners = merged(kind, [each.rate for each in asked.values()], seconds, seed)
    clients, loop = Clients(server), asyncio.get_running_loop()
    seen = {name: Counter[int]() for name in names}

    async def one(name: str) -> None:
        seen[name][await clients.status_of(asked[name].bytes)] += 1

    begun, tasks = loop.time() + 0.1, []
    for at, owner in zip(times.tolist(), owners.tolist(), strict=True):
        if (left := begun + at - loop.time()) > 0:
            await asyncio.sleep(left)
        tasks.append(asyncio.create_task(one(names[owner])))
    await asyncio.gather(*tasks)
    clients.close()
    failed = {status for counts in seen.values() for status in counts} - {ANSWERED, REFUSED}
    if failed:
        raise RuntimeError(f"requests were answered with {failed}")
    return {name: counts[ANSWERED] / max(counts.total(), 1) for name, counts in seen.items()}


def traffic(server: Server, load: float) -> dict[str, Asked]:
    """What asks for `load` times the device, by the costs that the server learned at its start."""
    costs = {model["name"]: next(iter(model["serving"]["costs"].values())) for model in server.models()}
    one = {name: costs[name]["1"] for name in costs}
    per_row = {name: min(cost / int(size) for size, cost in costs[name].items()) for name in costs}
    text = {"inputs": [{"name": "content", "datatype": "BYTES", "shape": [1], "data": ["int main(void) {}\n" * 20]}]}
    calls = {
        "cnn": infer_call("cnn", {"image": random_rows(1, *IMAGE)}),
        "filetype": InferCall("/v2/models/filetype/infer", orjson.dumps(text), {"Content-Type": "application/json"}),
        "tabular": infer_call("tabular", {"X": random_rows(1, 30)}),
    }
    seconds = {name: DEADLINES[name] * one["cnn" if name == "tabular" else name] for name in calls}
    rates = {**{name: load * part / per_row[name] for name, part in PARTS.items()}, "tabular": TREES_RATE * load}
    for name in calls:
        progress(f"{name}: {1e3 * one[name]:.2f} ms, {rates[name]:.1f}/s, allowed {1e3 * seconds[name]:.0f} ms")
    return {name: Asked(call, round(seconds[name] * 1e3), rates[name]) for name, call in calls.items()}


def measure(folder: Path, arguments: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, float]]]:
    """By arrivals and sizing, of each round the part in time of each model."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {(k, s): [] for k in arguments.arrivals for s in SIZINGS}
    asked: dict[str, Asked] = {}
    settings = {"CACHE_DIR": str(folder / "cache"), "MODELS_INCLUDE": "cnn,tabular,filetype"}
    settings |= {"SCHEDULER_DISCIPLINE": "edf", "RUNTIME_INTRA_OP_THREADS": "1"}
    for turn in range(arguments.rounds):
        for sizing in SIZINGS:
            with inference_server(folder / "bundles", BUNDLES, SCHEDULER_SIZING=sizing, **settings) as server:
                asked = asked or traffic(server, arguments.load)
                for kind in arguments.arrivals:
                    progress(f"round {turn + 1}: {kind}, {sizing}")
                    parts = asyncio.run(offer(server, asked, kind, arguments.seconds, arguments.seed + turn))
                    total = sum(each.rate for each in asked.values())
                    whole = sum(parts[name] * each.rate for name, each in asked.items()) / total
                    found[kind, sizing].append({"all": whole, **parts})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the parts in time; 1 when less was answered in time by value than by cost."""
    parser = argparse.ArgumentParser(prog="net_value", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement")
    parser.add_argument("--load", type=float, default=1.3, help="device time asked for, × what there is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arrivals", nargs="+", choices=ARRIVALS, default=ARRIVALS)
    parser.add_argument("--limit", type=float, default=1.0, help="least × as much in time by value as by cost")
    arguments = parser.parse_args(argv)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_bundle(folder / "bundles", "cnn", resnet50(), _MANIFEST)
        found = measure(folder, arguments)
    ratios = []
    for kind in arguments.arrivals:
        for sizing in SIZINGS:
            some = found[kind, sizing]
            cells = [f"{model} {spread([100 * each[model] for each in some], '.1f')} %" for model in some[0]]
            print(f"{kind:>8} {sizing:>6}  in time: {', '.join(cells)}")
        pairs = zip(found[kind, "value"], found[kind, "cost"], strict=True)
        ratios.append([value["all"] / max(cost["all"], 1e-9) for value, cost in pairs])
    said = ", ".join([f"{kind} {spread(each)}" for kind, each in zip(arguments.arrivals, ratios, strict=True)])
    least = min(min(each) for each in ratios)
    return verdict(
        least >= arguments.limit, f"by value × as much in time as by cost: {said} (limit {arguments.limit:g})"
    )


if __name__ == "__main__":
    sys.exit(main())
