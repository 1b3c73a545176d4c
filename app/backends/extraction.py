"""Taking the large initializers out of a graph: they become inputs, which every run is given where they lie."""

from onnx import ModelProto, TensorProto, helper

from app.backends.entry import Weight
from app.backends.graph import walk_tensors


class UnboundError(Exception):
    """Weights in places that no input reaches."""


def take_out_weights(model: ModelProto) -> tuple[Weight, ...]:
    """Turn every initializer that lies in a file into an input; `model` is changed in place.

    Raises `UnboundError` where others remain: branches and functions take no inputs.
    """
    graph = model.graph
    outside = [tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    kept = [tensor for tensor in graph.initializer if tensor.data_location != TensorProto.EXTERNAL]
    graph.input.extend(helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in outside)
    weights = tuple(Weight(each.name, each.data_type, tuple(each.dims), _offset(each)) for each in outside)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    if left := [tensor.name for tensor in walk_tensors(model) if tensor.data_location == TensorProto.EXTERNAL]:
        raise UnboundError(f"weights inside branches or functions cannot be inputs: {', '.join(left[:3])}")
    return weights


def _offset(tensor: TensorProto) -> int:
    return next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
