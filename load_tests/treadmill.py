"""Models that take as long as one likes, on any machine: what they do costs time and changes nothing."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from load_tests.wire import random_rows

#: Floats in a row of a treadmill.
WIDTH = 64

#: Turns that are timed at once.
_TIMED = 20_000


def treadmill(turns: int = 0, growth: int = 0) -> onnx.ModelProto:
    """Answers its rows as they came, but not at once: `x` FP32 [batch, WIDTH] to `y`.

    First they are multiplied with the identity `turns` times, and `growth` times the square of the batch size more.
    An execution can be ended between two of these turns.
    """
    count = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Mul", ["batch", "batch"], ["square"]),
        helper.make_node("Mul", ["square", "growth"], ["grown"]),
        helper.make_node("Add", ["grown", "turns"], ["count"]),
    ]
    return _turning(WIDTH, count, [], {"first": 0, "growth": growth, "turns": turns})


def stopwatch() -> onnx.ModelProto:
    """A treadmill that its client sets: `x` FP32 [batch, 1] and `turns` INT64 [batch, 1] to `y`.

    The most turns of any row count. What it costs nobody can learn, so that no deadline is refused because of it.
    """
    count = [helper.make_node("ReduceMax", ["turns"], ["count"], keepdims=0)]
    return _turning(1, count, [helper.make_tensor_value_info("turns", TensorProto.INT64, ["batch", 1])], {})


def turn_seconds() -> float:
    """What one turn of a treadmill takes here, on one thread, at its best."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    model = treadmill(_TIMED).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rows = {"x": random_rows(4, WIDTH)}
    seconds = []
    for _ in range(10):
        begun = time.perf_counter()
        session.run(None, rows)
        seconds.append(time.perf_counter() - begun)
    return min(seconds) / _TIMED


def _turning(
    width: int,
    count: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    numbers: Mapping[str, int],
) -> onnx.ModelProto:
    """`x` [batch, width] times the identity, as often as the scalar `count` that these nodes make says."""
    row: list[str | int | None] = ["batch", width]
    turn = helper.make_graph(
        [helper.make_node("MatMul", ["before", "identity"], ["after"]), helper.make_node("Identity", ["go"], ["on"])],
        "turn",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, row),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, row),
        ],
    )
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    graph = helper.make_graph(
        [*count, helper.make_node("Loop", ["count", "", "x"], ["y"], body=turn)],
        "treadmill",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, row), *inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, row)],
        [numpy_helper.from_array(np.eye(width, dtype=np.float32), "identity"), *constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
