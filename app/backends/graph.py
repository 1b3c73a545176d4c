"""Preparing a graph for compilation: every axis that a session will fix gets a name to fix it by.

ONNX Runtime fixes dims by name only, and silently does nothing for a dim without one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from app.backends.entry import Layout
from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import TensorSpec

#: The first IR version in which initializers need not be inputs too; those that are not are constants.
_CONSTANT_INITIALIZERS = 4

#: What an axis is for: its extent in each variant, `_BATCH` for the batch, None for an axis that stays free.
Role = tuple[int, ...] | None
_BATCH: Role = ()


def read_graph(model_file: Path) -> ModelProto:
    """The graph without its external data. Raises `BundleError` naming the file when it is no ONNX model."""
    try:
        model = onnx.load(str(model_file), load_external_data=False)
    except FileNotFoundError:
        raise BundleError(f"{model_file}: there is no such file") from None
    except Exception as error:  # protobuf, I/O and onnx each raise their own
        raise BundleError(f"{model_file}: not a readable ONNX model ({error})") from error
    if not model.graph.output:
        raise BundleError(f"{model_file}: not a readable ONNX model (it has no outputs)")
    return model


def walk_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model: initializers and constants, those of subgraphs and functions included."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def quantises_dynamically(model: ModelProto) -> bool:
    """Whether some node takes a quantisation scale from the values of the run, and so from all rows of a batch."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return any(node.op_type.startswith("DynamicQuantize") for node in _all_nodes(nodes))


def external_files(model: ModelProto) -> tuple[str, ...]:
    """The files of external data, relative to the model's folder, each once, sorted."""
    return tuple(
        sorted(
            {
                entry.value
                for tensor in walk_tensors(model)
                if tensor.data_location == TensorProto.EXTERNAL
                for entry in tensor.external_data
                if entry.key == "location"
            }
        )
    )


def name_axes(model: ModelProto, spec: ModelSpec, file: Path) -> Layout:
    """Give every batch axis, and every axis that a variant fixes, a name that stands for nothing else.

    Changes `model` in place and returns the names. A name that is right already stays: the optimiser reasons with
    equal names. Raises `BundleError` naming file and tensor where graph and specification disagree.
    """
    _drop_overridable_initializers(model)
    values = {value.name: value for value in model.graph.input}
    axes: list[tuple[onnx.TensorShapeProto.Dimension, Role]] = []
    for tensor in spec.inputs:
        dims = _dims(values, tensor, file)
        for axis, dim in enumerate(dims):
            role = _role(spec, tensor, axis)
            _check_fixed(dim, role, spec, f"{file}: axis {axis} of input {tensor.name!r}")
            axes.append((dim, role))
    roles: dict[str, set[Role]] = defaultdict(set)
    for dim, role in axes:
        roles[dim.dim_param].add(role)
    names = _names({role for _, role in axes if role is not None}, roles, model.graph)
    for dim, role in axes:
        if role is not None and not dim.HasField("dim_value") and (not dim.dim_param or len(roles[dim.dim_param]) > 1):
            dim.dim_param = names[role]
    open_axes = [(dim.dim_param, role) for dim, role in axes if role is not None and dim.dim_param]
    return Layout(
        batch_names=tuple(sorted({name for name, role in open_axes if role == _BATCH})),
        dims={
            variant.key: {name: role[index] for name, role in open_axes if role}
            for index, variant in enumerate(spec.variants)
        },
    )


def _names(wanted: set[tuple[int, ...]], roles: dict[str, set[Role]], graph: GraphProto) -> dict[tuple[int, ...], str]:
    """A name for each role: one that the graph already uses for it alone, else a new one."""
    taken = {dim.dim_param for value in _all_values(graph) for dim in value.type.tensor_type.shape.dim}
    names = {}
    for role in sorted(wanted):
        known = sorted(name for name, meanings in roles.items() if name and meanings == {role})
        stem = "batch" if role == _BATCH else "extent_" + "_".join(map(str, role))
        names[role] = known[0] if known else next(n for n in _candidates(stem) if n not in taken)
    return names


def _candidates(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1


def _dims(
    values: dict[str, ValueInfoProto], tensor: TensorSpec, file: Path
) -> Iterable[onnx.TensorShapeProto.Dimension]:
    value = values.get(tensor.name)
    if value is None:
        raise BundleError(f"{file}: the graph has no input {tensor.name!r}; its inputs are {sorted(values)}")
    shape = value.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape"):
        shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in tensor.shape)
    if len(shape.dim) != len(tensor.shape):
        raise BundleError(
            f"{file}: input {tensor.name!r} has {len(shape.dim)} axes in the graph, {len(tensor.shape)} are declared"
        )
    dims: Iterable[onnx.TensorShapeProto.Dimension] = shape.dim
    return dims


def _role(spec: ModelSpec, tensor: TensorSpec, axis: int) -> Role:
    if axis == tensor.batch_axis:
        return _BATCH
    extents = tuple(variant.dims.get((tensor.name, axis), 0) for variant in spec.variants)
    return extents if all(extents) else None


def _check_fixed(dim: onnx.TensorShapeProto.Dimension, role: Role, spec: ModelSpec, place: str) -> None:
    """An extent that the graph fixes has to be the declared one."""
    if role is None or not dim.HasField("dim_value"):
        return
    wanted = {size for variant in spec.variants for size in spec.sizes(variant.key)} if role == _BATCH else set(role)
    if not wanted <= {dim.dim_value}:
        what = "the batch, of sizes" if role == _BATCH else "variable, of extents"
        raise BundleError(
            f"{place} is declared as {what} {sorted(wanted)}, but the graph fixes it at {dim.dim_value}; "
            "export the model with a dynamic axis there, or declare that extent alone"
        )


def _drop_overridable_initializers(model: ModelProto) -> None:
    """Initializers that are inputs too may be overridden at each run, so they are never folded, packed or shared."""
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    if len(kept) < len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.ir_version = max(model.ir_version, _CONSTANT_INITIALIZERS)


def _all_values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _graph_tensors(attribute.g)
            for graph in attribute.graphs:
                yield from _graph_tensors(graph)
