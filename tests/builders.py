"""Small makers of domain values, with defaults, for tests."""

from math import inf

import numpy as np
from onnx import TensorProto, helper

from app.domain.model import MergeKey, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.scheduling.request import QueuedRequest

DEFAULT_KEY = MergeKey("default")


def tensor(name="x", datatype="FP32", shape=(-1, 3), batch_axis=0):
    return TensorSpec(name, datatype, shape, batch_axis)


def spec(name="m", sizes=(1, 2, 4), inputs=None, outputs=None, **changes):
    """A plain model with one variant; client tensors are the executable ones."""
    inputs = inputs or (tensor("x"),)
    outputs = outputs or (tensor("y"),)
    values = {
        "inputs": inputs,
        "outputs": outputs,
        "variants": (Variant("default", sizes, {}),),
        "client_inputs": inputs,
        "client_outputs": outputs,
        **changes,
    }
    return ModelSpec(name, **values)


def request(model_id="m", rows=1, enqueued_at=0.0, deadline=inf, committed=False, key=DEFAULT_KEY):
    return QueuedRequest(
        model_id=model_id, merge_key=key, rows=rows, enqueued_at=enqueued_at, deadline=deadline, committed=committed
    )


def rows_of(start, count, width=3):
    """`count` rows of `width` floats, each telling its own number: row i holds i, i, …"""
    return np.repeat(np.arange(start, start + count, dtype=np.float32)[:, None], width, axis=1)


def write_meta_bundle(root, name="meta", calls=(), hooks="def run(inputs, call):\n    return dict(inputs)\n"):
    """A meta model on disk that takes and answers `x` FP32 [-1, 3], as it is unless its hooks do otherwise."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    tensor = "{name: x, dtype: FP32, shape: nc, dims: {c: 3}}"
    (path / "manifest.yaml").write_text(
        f'format_version: "1"\nkind: meta\ncalls: [{", ".join(calls)}]\n'
        f"client_inputs: [{tensor}]\nclient_outputs: [{tensor}]\n"
    )
    (path / "hooks.py").write_text(hooks)
    return path


def write_identity_bundle(root, name="m", sizes=(1, 2, 4), hooks="", manifest=""):
    """A bundle on disk whose model answers its input: `x` FP32 [-1, 3] to `y` FP32 [-1, 3]."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path / "model.onnx").write_bytes(model.SerializeToString())
    text = f'format_version: "1"\nbatching: {{compiled_batch_sizes: {list(sizes)}}}\n{manifest}'
    (path / "manifest.yaml").write_text(text)
    if hooks:
        (path / "hooks.py").write_text(hooks)
    return path
