"""Are more models than the device holds all served right, within the budget and in less memory?

Twenty models share a device that holds about six of them, some asked for far more often than others. Every answer is
compared with what plain ONNX Runtime says of that model; bytes on the device and memory of the process are read all
along, and compared with a server that keeps all twenty. Once with models of one size, once with a mixed lot.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from load_tests.connections import Connection
from load_tests.memory import megabytes, memory_of
from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, progress, spread, verdict
from load_tests.wire import InferCall, head_of, infer_call

WIDTH_IN, WIDTH_OUT = 64, 16

#: Width of the hidden layers, by place in the catalogue: 4 MB of weights each, or 0.3 to 16 MB.
CATALOGUES: Mapping[str, Sequence[int]] = {"equal": (1000,), "unequal": (250, 500, 1000, 1500, 2000)}

#: The largest is never filled here: it is there for its activations, which the budget has to leave room for.
SIZES = (1, 512)

#: Different inputs per model, so that a neighbour's answer is seen to be one.
ROWS = 8

#: Popularity falls with the rank to this power.
SKEW = 1.0

LOOK_SECONDS = 0.05

#: What the server keeps free of weights, by default.
WIGGLE = 0.1

#: How far the activation memory that the server measures may be from two hidden layers, which is what a model needs.
SCRATCH_FACTOR = 1.5


@dataclass(frozen=True)
class Question:
    """A request, as sent, and the answer to it."""

    sent: bytes
    answer: NDArray[np.float32]


@dataclass(frozen=True)
class Catalogue:
    """Questions by model, and how likely each model is to be asked."""

    questions: Mapping[str, Sequence[Question]]
    popularity: Sequence[float]


@dataclass(frozen=True)
class Served:
    """What one server did under traffic. Bytes; `node` is what its status says afterwards."""

    idle: int
    memory: int
    right: Counter[bool]
    most_resident: int
    most_over: int
    """What was on the device beyond the budget on demand, at worst."""
    looks: int
    node: Mapping[str, Any]

    def total(self, what: str) -> float:
        """The sum over all models."""
        return float(sum(model["serving"][what] for model in self.node["models"]))


def write_catalogue(root: Path, widths: Sequence[int], count: int) -> Catalogue:
    """Write the bundles, and ask plain ONNX Runtime for the answers. The order of popularity is another than that of
    sizes."""
    import onnxruntime as ort

    manifest = f'format_version: "1"\nbatching: {{compiled_batch_sizes: {list(SIZES)}}}\n'
    questions = {}
    for index in range(count):
        name, width = f"m{index:02}", widths[index % len(widths)]
        file = write_bundle(root, name, mlp((WIDTH_IN, width, width, WIDTH_OUT), seed=index), manifest)
        session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        rows = np.random.default_rng(index).standard_normal((ROWS, 1, WIDTH_IN), dtype=np.float32)
        questions[name] = [Question(_sent(infer_call(name, {"x": x})), session.run(None, {"x": x})[0]) for x in rows]
    ranks = list(range(1, count + 1))
    random.Random(0).shuffle(ranks)
    return Catalogue(questions, [rank**-SKEW for rank in ranks])


def _sent(call: InferCall) -> bytes:
    return head_of(call) + call.body


def ask(server: Server, catalogue: Catalogue, seed: int, until: float) -> Counter[bool]:
    """One client, which waits for each answer; how many were right, and how many not."""
    chance, names = random.Random(seed), list(catalogue.questions)
    right: Counter[bool] = Counter()
    with Connection(server) as connection:
        while time.monotonic() < until:
            name = chance.choices(names, catalogue.popularity)[0]
            question = chance.choice(catalogue.questions[name])
            connection.send(question.sent)
            status, body = connection.answer()
            told = np.frombuffer(body[-question.answer.nbytes :], np.float32)
            right[status == 200 and np.allclose(told, question.answer.ravel(), rtol=1e-3, atol=1e-3)] += 1
    return right


def serve(server: Server, catalogue: Catalogue, clients: int, seconds: float) -> Served:
    """Let clients ask for so long, and look at the server meanwhile."""
    idle, until = memory_of(server.pid), time.monotonic() + seconds
    resident, over, memory = [], [], []
    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, server, catalogue, seed, until) for seed in range(clients)]
        while time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            node = status(server)
            resident.append(node["resident_weight_bytes"])
            over.append(node["resident_weight_bytes"] - node["weight_on_demand_bytes"])
            memory.append(memory_of(server.pid))
        right = sum((each.result() for each in asking), Counter[bool]())
    late = round(mean(memory[len(memory) // 2 :]))
    return Served(idle, late, right, max(resident), max(over), len(over), status(server))


def status(server: Server) -> Mapping[str, Any]:
    """What the node says of itself."""
    node: Mapping[str, Any] = json.loads(server.get("/status"))
    return node


def scratch_error(served: Served, widths: Sequence[int]) -> float:
    """The factor by which the activation memory is off, either way."""
    ratio = served.node["scratch_bytes"] / (2 * SIZES[-1] * max(widths) * 4)
    return float(max(ratio, 1 / ratio if ratio else float("inf")))


def arena_for(node: Mapping[str, Any], models: float) -> int:
    """Device memory that holds so many models of mean size beside their activations."""
    weights = [model["serving"]["weight_bytes"] for model in node["models"]]
    return int((models * mean(weights) + node["scratch_bytes"]) / (1 - WIGGLE))


def compare(bundles: Path, cache: Path, catalogue: Catalogue, arguments: argparse.Namespace) -> tuple[Served, Served]:
    """The same traffic with all models on the device, and with room for a few."""
    with inference_server(bundles, CACHE_DIR=str(cache)) as server:
        everything = serve(server, catalogue, arguments.clients, arguments.seconds)
    arena = arena_for(everything.node, arguments.room)
    with inference_server(bundles, CACHE_DIR=str(cache), RUNTIME_DEVICE_MEMORY_BYTES=str(arena)) as server:
        few = serve(server, catalogue, arguments.clients, arguments.seconds)
    return everything, few


def show(name: str, everything: Served, few: Served) -> float:
    """Print what both did; the growth of the second's memory, as a part of the first's."""
    grown = [each.memory - few.idle for each in (everything, few)]
    rate, loads = few.node["weight_hit_rate"], few.total("weight_loads")
    print(
        f"{name}: {megabytes(everything.total('weight_bytes'))} of weights, of which "
        f"{megabytes(few.node['weight_on_demand_bytes'])} fit; at most {megabytes(few.most_resident)} seen in "
        f"{few.looks} looks; activations {megabytes(few.node['scratch_bytes'])}\n"
        f"  answers: {few.right[True]} right, {few.right[False]} wrong ({everything.right.total()} with all on the "
        f"device); {loads:.0f} loads of {few.total('weight_load_seconds') / loads * 1e3:.1f} ms, "
        f"{few.total('weight_evicts'):.0f} evictions, hit rate {rate:.3f}\n"
        f"  memory: idle {megabytes(few.idle)}; grows by {megabytes(grown[1])}, with all on the device by "
        f"{megabytes(grown[0])}",
        flush=True,
    )
    return grown[1] / grown[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was served from how much memory; 1 when an answer was wrong, or too much was held."""
    parser = argparse.ArgumentParser(prog="catalogue", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8, help="length of the traffic")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--room", type=float, default=6.2, help="models of mean size that the device holds")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--limit", type=float, default=0.6, help="largest growth, as a part of that with all models")
    arguments = parser.parse_args(argv)
    print(machine())
    ratios, served, errors = [], [], []
    for name, widths in CATALOGUES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            catalogue = write_catalogue(root / "bundles", widths, arguments.models)
            for turn in range(arguments.rounds):
                progress(f"{name}, round {turn + 1} of {arguments.rounds}")
                everything, few = compare(root / "bundles", root / "cache", catalogue, arguments)
                ratios.append(show(name, everything, few))
                served += [everything, few]
                errors.append(scratch_error(few, widths))
    limited = served[1::2]
    wrong, over = sum(each.right[False] for each in served), max(each.most_over for each in limited)
    thrifty = max(ratios) <= arguments.limit
    moved = all(each.total("weight_evicts") > 0 and 0 < each.node["weight_hit_rate"] < 1 for each in limited)
    text = (
        f"{wrong} of {sum(each.right.total() for each in served)} answers wrong; weights on the device at most "
        f"{over} bytes above the budget; memory grows {spread(ratios)} times as much as with all models (limit "
        f"{arguments.limit:g}); activations off by a factor of {max(errors):.2f} (limit {SCRATCH_FACTOR:g})"
    )
    sane = max(errors) <= SCRATCH_FACTOR
    return verdict(not wrong and over <= 0 and thrifty and moved and sane, text)


if __name__ == "__main__":
    sys.exit(main())
