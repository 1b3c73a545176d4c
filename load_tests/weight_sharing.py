"""Do the compiled sizes of one model really share its weights, and at no cost in speed?

Run as `python -m load_tests.weight_sharing`. A transformer of about 90 MB is generated and compiled; then fresh
processes each load and run it in one way, and what their memory (pages shared by several mappings count once) grew by
is compared. Then all sizes are run in turn with plain sessions of as many threads. The exit status is 1 when five sizes
take more than `LIMIT` times what one session of the largest takes, or have less than `LEAST_SPEED` times the speed of
plain ones.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from app.domain.config import RuntimeConfig
from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Array, TensorSpec
from load_tests.memory import memory_of
from load_tests.report import machine, spread, verdict

#: Largest growth of five sizes, as a multiple of the growth of one session of the largest size.
LIMIT = 1.35

#: Least speed, against plain sessions: the mean over the sizes.
LEAST_SPEED = 0.97

SIZES = (1, 4, 8, 16, 32)
SEQUENCE = 32

_VOCABULARY, _WIDTH, _HEADS, _LAYERS = 32_000, 384, 12, 6

_VARIANT = "default"

Run = Callable[[int, Mapping[str, Array]], Any]


class _Graph:
    """Collects nodes and random weights of a graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """Append a small constant; returns its name."""
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Append random weights of a scale that keeps activations near 1; returns their name."""
        return self.constant(self.random.standard_normal(shape) * (shape[0] ** -0.5 if len(shape) > 1 else 0.02))

    def dense(self, x: str, width_in: int, width_out: int) -> str:
        """x · W + b."""
        return self.add("Add", self.add("MatMul", x, self.weight(width_in, width_out)), self.weight(width_out))

    def normalise(self, x: str) -> str:
        """Layer normalisation over the last axis."""
        return self.add(
            "LayerNormalization", x, self.constant(np.ones(_WIDTH)), self.constant(np.zeros(_WIDTH)), axis=-1
        )


def transformer() -> onnx.ModelProto:
    """A sentence encoder of six layers: ids int64 [batch, seq] → embedding fp32 [batch, 384]."""
    graph = _Graph()
    table = graph.constant(graph.random.standard_normal((_VOCABULARY, _WIDTH)))
    positions = graph.constant(graph.random.standard_normal((SEQUENCE, _WIDTH)))
    x = graph.normalise(graph.add("Add", graph.add("Gather", table, "ids"), positions))
    split = graph.constant([0, 0, _HEADS, _WIDTH // _HEADS], np.int64)
    joined = graph.constant([0, 0, _WIDTH], np.int64)
    scale = graph.constant((_WIDTH // _HEADS) ** -0.5)
    for _ in range(_LAYERS):
        query, key, value = (
            graph.add("Transpose", graph.add("Reshape", graph.dense(x, _WIDTH, _WIDTH), split), perm=order)
            for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = graph.add("Softmax", graph.add("Mul", graph.add("MatMul", query, key), scale), axis=-1)
        context = graph.add("Transpose", graph.add("MatMul", scores, value), perm=[0, 2, 1, 3])
        x = graph.normalise(graph.add("Add", x, graph.dense(graph.add("Reshape", context, joined), _WIDTH, _WIDTH)))
        hidden = graph.dense(x, _WIDTH, 4 * _WIDTH)
        error = graph.add("Erf", graph.add("Mul", hidden, graph.constant(2**-0.5)))
        gate = graph.add("Mul", graph.add("Add", error, graph.constant(1.0)), graph.constant(0.5))
        gelu = graph.add("Mul", hidden, gate)
        x = graph.normalise(graph.add("Add", x, graph.dense(gelu, 4 * _WIDTH, _WIDTH)))
    graph.nodes.append(helper.make_node("ReduceMean", [x, graph.constant([1], np.int64)], ["embedding"], keepdims=0))
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            "transformer",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", SEQUENCE])],
            [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", _WIDTH])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )


def describe(sizes: Sequence[int]) -> ModelSpec:
    """The specification of the transformer with these compiled sizes."""
    return ModelSpec(
        name="transformer",
        inputs=(TensorSpec("ids", "INT64", (-1, SEQUENCE), 0),),
        outputs=(TensorSpec("embedding", "FP32", (-1, _WIDTH), 0),),
        variants=(Variant(_VARIANT, tuple(sizes), {}),),
    )


def load_ours(model_file: Path, cache_dir: Path, sizes: Sequence[int]) -> Run:
    """The model in our backend; it is compiled already."""
    from app.backends import create

    backend = create(RuntimeConfig(backend="cpu"), cache_dir)
    spec = describe(sizes)
    model = backend.prepare(backend.compile(model_file, spec), spec).load()
    backend.close()
    return lambda size, inputs: model.run(_VARIANT, size, inputs)


def load_plain(model_file: Path, sizes: Sequence[int]) -> Run:
    """One ordinary session per size, over the model file as it is."""
    import onnxruntime as ort

    from app.backends.threads import usable_cores

    sessions = {}
    for size in sizes:
        options = ort.SessionOptions()
        options.intra_op_num_threads = usable_cores()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_free_dimension_override_by_name("batch", size)
        sessions[size] = ort.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
    return lambda size, inputs: sessions[size].run(None, inputs)


def inputs_of(size: int) -> dict[str, Array]:
    """Ids all over the vocabulary, so that the whole table is touched as in service."""
    return {"ids": np.random.default_rng(size).integers(0, _VOCABULARY, (size, SEQUENCE))}


def grow(load: Callable[[], Run], sizes: Sequence[int]) -> dict[str, float]:
    """Load, run every size twice; bytes grown and seconds taken to load."""
    before, started = memory_of(), time.perf_counter()
    run = load()
    loaded = time.perf_counter()
    for _ in range(2):  # a second run may need more than the first
        for size in sizes:
            run(size, inputs_of(size))
    return {"bytes": memory_of() - before, "seconds": loaded - started}


def compare_times(ours: Run, plain: Run, rounds: int) -> dict[str, list[list[float]]]:
    """Run times in ms of both, by size, taken in turn, each first as often as the other; the first round warms up."""
    result: dict[str, list[list[float]]] = {str(size): [[], []] for size in SIZES}
    for turn in range(rounds + 1):
        for size in SIZES:
            inputs = inputs_of(size)
            both = list(zip((ours, plain), result[str(size)], strict=True))
            for run, times in both if turn % 2 else reversed(both):
                started = time.perf_counter()
                run(size, inputs)
                if turn:
                    times.append((time.perf_counter() - started) * 1e3)
    return result


def speeds(times: Mapping[str, list[list[float]]]) -> list[float]:
    """How fast ours was in each round, against plain sessions: the geometric mean over the sizes."""
    ratios = [[b / a for a, b in zip(ours, plain, strict=True)] for ours, plain in times.values()]
    return [geometric_mean(of_round) for of_round in zip(*ratios, strict=True)]


def _measure(what: str, model_file: Path, cache_dir: Path, rounds: int) -> Any:
    """One measurement, in this process."""
    largest = SIZES[-1:]
    if what == "compile":
        from app.backends import create

        backend = create(RuntimeConfig(backend="cpu"), cache_dir)
        try:
            entries = [backend.compile(model_file, describe(sizes)) for sizes in (SIZES, largest)]
        finally:
            backend.close()
        return {"form": entries[0].form, "reason": entries[0].reason, "bytes": entries[0].weight_bytes}
    if what == "times":
        return compare_times(load_ours(model_file, cache_dir, SIZES), load_plain(model_file, SIZES), rounds)
    who, sizes = what.split("-")
    chosen = SIZES if sizes == "all" else largest
    if who == "ours":
        return grow(lambda: load_ours(model_file, cache_dir, chosen), chosen)
    return grow(lambda: load_plain(model_file, chosen), chosen)


def _in_child(what: str, directory: Path, rounds: int) -> Any:
    """One measurement, in a process of its own."""
    command = [sys.executable, "-m", "load_tests.weight_sharing", "--measure", what, "--directory", str(directory)]
    done = subprocess.run([*command, "--rounds", str(rounds)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> int:
    """Print the comparison; 1 when the sizes share too little."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=16, help="runs per size")
    parser.add_argument("--directory", type=Path, help="where model and compile cache go (default: a temporary one)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        directory = arguments.directory
        result = _measure(arguments.measure, directory / "model.onnx", directory / "cache", arguments.rounds)
        print(json.dumps(result))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        return _report(arguments.directory or Path(temporary), arguments.rounds)


def _report(directory: Path, rounds: int) -> int:
    print(machine())
    directory.mkdir(parents=True, exist_ok=True)
    model_file = directory / "model.onnx"
    onnx.save(transformer(), str(model_file))
    entry = _in_child("compile", directory, rounds)
    print(f"Transformer of {_mib(model_file.stat().st_size)}, sequence {SEQUENCE}, sizes {', '.join(map(str, SIZES))}.")
    print(f"Compiled: {entry['form']}, weight file of {_mib(entry['bytes'])}. {entry['reason']}\n")

    rows = {
        "ours, five sizes": "ours-all",
        f"ours, size {SIZES[-1]} alone": "ours-one",
        "plain, five sessions": "plain-all",
        f"plain, size {SIZES[-1]} alone": "plain-one",
    }
    grown = {label: _in_child(what, directory, rounds) for label, what in rows.items()}
    one = grown[f"ours, size {SIZES[-1]} alone"]["bytes"]
    print(f"{'growth of the process':<30}{'memory':>12}{'ratio':>8}{'load':>10}")
    for label, result in grown.items():
        load = f"{result['seconds'] * 1e3:.0f} ms"
        print(f"{label:<30}{_mib(result['bytes']):>12}{result['bytes'] / one:>8.2f}{load:>10}")

    times = _in_child("times", directory, rounds)
    print(f"\n{'time of one run':<30}{'ours':>12}{'plain':>12}{'speed':>8}")
    for size, both in times.items():
        ours, plain = (median(each) for each in both)
        print(f"{'size ' + size:<30}{ours:>9.2f} ms{plain:>9.2f} ms{plain / ours:>8.2f}")

    ratio, speed = grown["ours, five sizes"]["bytes"] / one, speeds(times)
    text = (
        f"five sizes take {ratio:.2f} times the memory of one (limit {LIMIT:g}), at {spread(speed)} times the speed of "
        f"plain sessions (limit {LEAST_SPEED:g})"
    )
    return verdict(ratio <= LIMIT and median(speed) >= LEAST_SPEED, text)


def _mib(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
