"""Generated models for measurements. Their weights are random: only their cost matters."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: The example bundles of this repository.
EXAMPLES = Path(__file__).parents[1] / "bundles"


def mlp(widths: Sequence[int], seed: int = 0) -> onnx.ModelProto:
    """A chain of matrix products with ReLU between: `x` [batch, widths[0]] to `y` [batch, widths[-1]]."""
    random = np.random.default_rng(seed)
    nodes, weights, name = [], [], "x"
    for layer, (rows, columns) in enumerate(pairwise(widths)):
        values = random.standard_normal((rows, columns), dtype=np.float32) / np.float32(rows**0.5)
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        last = layer == len(widths) - 2
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], ["y" if last else f"h{layer}"]))
        name = f"h{layer}"
        if not last:
            nodes.append(helper.make_node("Relu", [name], [f"r{layer}"]))
            name = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", widths[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_bundle(root: Path, name: str, model: onnx.ModelProto, manifest: str = "", hooks: str = "") -> Path:
    """A bundle directory under `root`; returns the model file."""
    path = root / name
    path.mkdir(parents=True)
    onnx.save(model, path / "model.onnx")
    if manifest:
        (path / "manifest.yaml").write_text(manifest)
    if hooks:
        (path / "hooks.py").write_text(hooks)
    return path / "model.onnx"
