"""What an ONNX graph says of its own tensors, read without its weights."""

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped] # it comes without types
from onnx import TensorProto, ValueInfoProto

from app.domain.errors import BundleError
from app.domain.tensors import TensorSpec
from app.repository.outline import Outline, read_outline

_V2_NAMES: dict[int, str] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "BYTES",
}

_REMEDIES = {
    "sequence_type": "convert with zipmap=False if a scikit-learn converter made it, else join the sequence into one "
    "tensor in the graph (ConcatFromSequence)",
    "map_type": "convert with zipmap=False if a scikit-learn converter made it, else return keys and values as tensors",
    "optional_type": "return the tensor itself (OptionalGetElement)",
    "sparse_tensor_type": "return a dense tensor",
}


def describe(model_file: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The inputs and outputs of a graph, in its order; external data is not touched.

    A leading extent that is symbolic or unnamed is the batch axis; every other extent that is not fixed is -1.
    Raises `BundleError` naming file, tensor and remedy for what cannot be served.
    """
    graph = _read(model_file)
    inputs = _specs(model_file, "input", (value for value in graph.inputs if value.name not in graph.constants))
    outputs = _specs(model_file, "output", graph.outputs)
    if not outputs:
        raise BundleError(f"{model_file}: the graph has no output: export the model again")
    return inputs, outputs


def _read(model_file: Path) -> Outline:
    try:
        graph = read_outline(model_file)
        if any(_rank_unknown(value) for value in graph.outputs):  # some exporters leave out what ONNX can tell
            model = onnx.load_model(model_file, format="protobuf", load_external_data=False)
            graph.outputs = list(onnx.shape_inference.infer_shapes(model).graph.output)
    except (DecodeError, ValueError) as error:
        raise BundleError(f"{model_file}: not an ONNX file ({error}): copy or export it again") from error
    return graph


def _rank_unknown(value: ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _specs(model_file: Path, role: str, values: Iterable[ValueInfoProto]) -> tuple[TensorSpec, ...]:
    specs = tuple(_spec(f"{model_file}: {role} {value.name!r}", value) for value in values)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise BundleError(f"{model_file}: {role} {name!r} stands twice in the graph: export the model again")
    return specs


def _spec(where: str, value: ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        found = kind.removesuffix("_type").replace("_", " ") if kind else "untyped value"
        remedy = _REMEDIES.get(kind or "", "export the model again")
        raise BundleError(f"{where} is of type {found}, and only tensors can be served: {remedy}")
    tensor = value.type.tensor_type
    datatype = _V2_NAMES.get(tensor.elem_type)
    if datatype is None:
        raise BundleError(
            f"{where} has elements of type {_type_name(tensor.elem_type)}, which no client can send or read: cast it "
            f"in the graph to one of {', '.join(_V2_NAMES.values())}"
        )
    if _rank_unknown(value):
        raise BundleError(f"{where} has no shape, not even a rank: export the model with shapes")
    dims = tensor.shape.dim
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)
    if not shape or shape[0] != -1:
        return TensorSpec(value.name, datatype, shape)
    # Without a name it may be any extent, so it is told apart from all others.
    return TensorSpec(value.name, datatype, shape, batch_axis=0, batch_name=dims[0].dim_param or f"of {value.name}")


def _type_name(elem_type: int) -> str:
    known = elem_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(elem_type) if known else str(elem_type)
