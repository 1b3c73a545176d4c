"""What is read from an ONNX graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from app.domain.errors import BundleError
from app.domain.tensors import TensorSpec
from app.repository.graph import describe


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.onnx"


def _save(file: Path, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto], nodes: list[NodeProto]) -> None:
    onnx.save_model(helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs)), file)


@pytest.mark.parametrize("leading", ["batch", "DynamicDimension.0", None])
def test_symbolic_or_unnamed_leading_dim_is_the_batch_axis(file, write_graph, leading):
    write_graph(file, [("x", TensorProto.FLOAT, [leading, 3, None, "width"])])
    inputs, outputs = describe(file)
    assert inputs == (TensorSpec("x", "FP32", (-1, 3, -1, -1), batch_axis=0),)
    assert outputs == (TensorSpec("y", "FP32", (-1, 3, -1, -1), batch_axis=0),)


@pytest.mark.parametrize("shape", [[1, 3], [2, "batch"], [], [0]])
def test_fixed_leading_dim_and_scalar_have_no_batch_axis(file, write_graph, shape):
    write_graph(file, [("x", TensorProto.FLOAT, shape)])
    (spec,), _ = describe(file)
    assert spec.batch_axis is None
    assert spec.shape == tuple(extent if isinstance(extent, int) else -1 for extent in shape)


@pytest.mark.parametrize(
    ("elem_type", "datatype"),
    [
        (TensorProto.BOOL, "BOOL"),
        (TensorProto.UINT8, "UINT8"),
        (TensorProto.UINT16, "UINT16"),
        (TensorProto.UINT32, "UINT32"),
        (TensorProto.UINT64, "UINT64"),
        (TensorProto.INT8, "INT8"),
        (TensorProto.INT16, "INT16"),
        (TensorProto.INT32, "INT32"),
        (TensorProto.INT64, "INT64"),
        (TensorProto.FLOAT16, "FP16"),
        (TensorProto.BFLOAT16, "BF16"),
        (TensorProto.FLOAT, "FP32"),
        (TensorProto.DOUBLE, "FP64"),
        (TensorProto.STRING, "BYTES"),
    ],
)
def test_every_servable_element_type_has_its_v2_name(file, write_graph, elem_type, datatype):
    write_graph(file, [("x", elem_type, ["n"])])
    (spec,), _ = describe(file)
    assert spec.datatype == datatype


@pytest.mark.parametrize("elem_type", ["COMPLEX64", "COMPLEX128", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_other_element_types_are_refused_with_the_remedy(file, write_graph, elem_type):
    write_graph(file, [("x", TensorProto.DataType.Value(elem_type), ["n"])])
    with pytest.raises(BundleError) as caught:
        describe(file)
    assert str(caught.value).startswith(f"{file}: input 'x' has elements of type {elem_type}")
    assert "cast it in the graph to one of BOOL, UINT8" in str(caught.value)


def test_names_with_colons_slashes_and_dots_are_kept(file, write_graph):
    write_graph(file, [("serving/x.1:0", TensorProto.FLOAT, ["n"])], [("scope/y:0", TensorProto.FLOAT, ["n"])])
    inputs, outputs = describe(file)
    assert (inputs[0].name, outputs[0].name) == ("serving/x.1:0", "scope/y:0")


def test_zipmap_output_is_refused_with_the_remedy(file):
    row = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    _save(
        file,
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])],
        [helper.make_value_info("output_probability", helper.make_sequence_type_proto(row))],
        [helper.make_node("ZipMap", ["X"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
    )
    with pytest.raises(BundleError) as caught:
        describe(file)
    assert str(caught.value) == (
        f"{file}: output 'output_probability' is of type sequence, and only tensors can be served: convert with "
        f"zipmap=False if a scikit-learn converter made it, else join the sequence into one tensor in the graph "
        f"(ConcatFromSequence)"
    )


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])), "map"),
        (helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1])), "optional"),
        (helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [3]), "sparse tensor"),
    ],
)
def test_what_is_no_dense_tensor_is_refused(file, made, found):
    values = [helper.make_value_info(name, made) for name in ("x", "y")]
    _save(file, values[:1], values[1:], [helper.make_node("Identity", ["x"], ["y"])])
    with pytest.raises(BundleError) as caught:
        describe(file)
    assert f"input 'x' is of type {found}, and only tensors can be served: " in str(caught.value)


def test_initializers_listed_as_inputs_are_no_inputs(file, write_graph):
    weights = numpy_helper.from_array(np.zeros(3, dtype=np.float32), "weights")
    write_graph(file, [("x", TensorProto.FLOAT, ["n"]), ("weights", TensorProto.FLOAT, [3])], initializer=[weights])
    inputs, _ = describe(file)
    assert [spec.name for spec in inputs] == ["x"]


def test_external_data_is_not_needed(file, write_graph):
    weights = numpy_helper.from_array(np.zeros(3, dtype=np.float32), "weights")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="not-there.bin")
    write_graph(file, initializer=[weights])
    inputs, _ = describe(file)
    assert [spec.name for spec in inputs] == ["x"]


def test_output_without_a_shape_is_inferred(file):
    _save(
        file,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
    )
    _, outputs = describe(file)
    assert outputs == (TensorSpec("y", "FP32", (3, -1)),)


def test_tensor_without_a_rank_is_refused(file):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    _save(file, values[:1], values[1:], [helper.make_node("Identity", ["x"], ["y"])])
    with pytest.raises(BundleError, match="input 'x' has no shape, not even a rank: export the model with shapes"):
        describe(file)


def test_output_that_stands_twice_is_refused(file, write_graph):
    y = ("y", TensorProto.FLOAT, ["n"])
    write_graph(file, [("x", TensorProto.FLOAT, ["n"])], [y, y])
    with pytest.raises(BundleError, match="output 'y' stands twice in the graph: export the model again"):
        describe(file)


@pytest.mark.parametrize("content", [b"not protobuf", b"\x08\x07\x12\xff\xff", b"version https://git-lfs\nsize 3"])
def test_what_is_no_onnx_file_is_refused(file, content):
    file.write_bytes(content)
    with pytest.raises(BundleError, match="not an ONNX file"):
        describe(file)


def test_empty_file_is_refused(file):
    file.write_bytes(b"")
    with pytest.raises(BundleError, match="the graph has no output: export the model again"):
        describe(file)


def test_open_first_axes_are_told_apart_by_their_names_and_unnamed_ones_are_all_different(file):
    leading = {"a": "n", "b": "m", "c": "n", "d": None, "e": None}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [dim]) for name, dim in leading.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    _save(file, inputs, [output], [helper.make_node("Identity", ["a"], ["y"])])
    a, b, c, d, e = (spec.batch_name for spec in describe(file)[0])
    assert a == c
    assert len({a, b, d, e}) == 4
    assert all((a, b, d, e))
