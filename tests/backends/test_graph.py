"""Naming the axes that sessions fix."""

from pathlib import Path

import onnx
import pytest

from app.backends.graph import external_files, name_axes, quantises_dynamically, read_graph, walk_tensors
from app.domain.errors import BundleError
from app.domain.model import Variant
from app.domain.tensors import TensorSpec
from tests.backends import models
from tests.backends.models import FLOAT, node, value

FILE = Path("bundle/model.onnx")


def shapes(built):
    """Dim names or extents of every input."""
    return {
        v.name: [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None) for dim in dims]
        for v in built.graph.input
        for dims in [v.type.tensor_type.shape.dim]
    }


def test_a_name_that_is_right_stays():
    built, described = models.mlp(batch="rows")
    assert name_axes(built, described, FILE).batch_names == ("rows",)
    assert shapes(built) == {"x": ["rows", 33]}


def test_an_unnamed_batch_gets_a_name():
    built, described = models.mlp(batch=None)
    assert name_axes(built, described, FILE).batch_names == ("batch",)
    assert shapes(built) == {"x": ["batch", 33]}


def test_an_unnamed_batch_takes_the_name_that_another_input_has_for_it():
    built, described = models.two_names()
    built.graph.input[1].type.tensor_type.shape.dim[0].Clear()
    assert name_axes(built, described, FILE).batch_names == ("n",)
    assert shapes(built) == {"a": ["n", 20], "b": ["n", 20]}


def test_several_names_for_one_batch_are_all_fixed():
    built, described = models.two_names()
    layout = name_axes(built, described, FILE)
    assert layout.overrides("default", 4) == {"m": 4, "n": 4}


def test_a_batch_on_another_axis_is_found_there():
    built, described = models.recurrent()
    assert name_axes(built, described, FILE).overrides("default", 2) == {"n": 2}
    assert shapes(built) == {"x": ["t", "n", 13]}


def test_a_name_for_batch_and_data_is_split():
    built, described = models.one_name_twice()
    layout = name_axes(built, described, FILE)
    assert layout.batch_names == ("batch",)
    assert shapes(built) == {"a": ["batch", 20], "c": ["batch", "d"]}


def test_a_new_name_is_none_that_the_graph_has():
    built, described = models.two_names()
    for value_info in built.graph.input:
        value_info.type.tensor_type.shape.dim[0].Clear()
    built.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    assert name_axes(built, described, FILE).batch_names == ("batch_2",)


def test_variants_fix_their_axes_and_a_free_session_fixes_none():
    built, described = models.convolutions()
    layout = name_axes(built, described, FILE)
    assert layout.overrides("12x8", 2) == {"n": 2, "h": 12, "w": 8}
    assert layout.overrides("8x8", 0) == {"h": 8, "w": 8}
    assert layout.overrides(None, 0) == {}


def test_unnamed_axes_of_equal_extents_in_every_variant_share_a_name():
    built, described = models.convolutions()
    for dim in built.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.Clear()
    variants = [Variant(str(side), (1,), {("x", 2): side, ("x", 3): side}) for side in (8, 16)]
    layout = name_axes(built, models.spec(described.inputs, described.outputs, variants=variants), FILE)
    assert shapes(built) == {"x": ["n", 3, "extent_8_16", "extent_8_16"]}
    assert layout.overrides("16", 0) == {"extent_8_16": 16}


def test_initializers_are_no_inputs():
    built, described = models.mlp()
    built.ir_version = 3
    built.graph.input.append(value("w0", FLOAT, [33, 65]))
    name_axes(built, described, FILE)
    assert [v.name for v in built.graph.input] == ["x"]
    assert built.ir_version >= 4


def test_an_input_without_a_shape_gets_the_declared_rank():
    built, described = models.mlp()
    built.graph.input[0].type.tensor_type.ClearField("shape")
    name_axes(built, described, FILE)
    assert shapes(built) == {"x": ["batch", None]}


def test_a_batch_that_the_graph_fixes_is_refused_with_the_remedy():
    built, described = models.mlp(batch=1)
    with pytest.raises(BundleError, match=r"bundle/model.onnx: axis 0 of input 'x' .* fixes it at 1; export"):
        name_axes(built, described, FILE)


def test_a_batch_that_the_graph_fixes_at_the_one_size_is_taken():
    built, described = models.mlp(batch=1, sizes=(1,))
    assert name_axes(built, described, FILE).overrides("default", 1) == {}


def test_an_extent_that_the_graph_fixes_otherwise_is_refused():
    built, described = models.convolutions()
    built.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 8
    with pytest.raises(BundleError, match="axis 2 of input 'x'"):
        name_axes(built, described, FILE)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (TensorSpec("z", "FP32", (-1, 33), 0), "no input 'z'"),
        (TensorSpec("x", "FP32", (-1, 33, 1), 0), "2 axes in the graph, 3 are declared"),
    ],
)
def test_an_input_that_the_graph_has_otherwise_is_refused(tensor, complaint):
    built, described = models.mlp()
    with pytest.raises(BundleError, match=complaint):
        name_axes(built, models.spec([tensor], described.outputs), FILE)


def test_tensors_are_found_wherever_they_hide():
    built, _ = models.subgraphs()
    built.graph.node.append(node("Constant", [], ["c"], value=models.weights("hidden", 2, 2)))
    built.functions.append(
        onnx.helper.make_function(
            "here",
            "f",
            ["x"],
            ["y"],
            [node("Constant", [], ["y"], value=models.weights("deep", 2, 2))],
            [onnx.helper.make_opsetid("", 17)],
        )
    )
    assert {tensor.name for tensor in walk_tensors(built)} == {"zero", "w_then", "w_else", "hidden", "deep"}


def test_external_files_are_listed_once(tmp_path):
    built, _ = models.mlp()
    onnx.save_model(built, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=10)
    assert external_files(read_graph(tmp_path / "m.onnx")) == ("w.bin",)
    assert external_files(models.mlp()[0]) == ()


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x08\x08"])
def test_what_is_no_model_is_refused_by_name(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=r"m\.onnx: not a readable ONNX model"):
        read_graph(tmp_path / "m.onnx")


def test_a_scale_from_the_run_is_found_wherever_it_is_taken():
    quantised = models.quantised()[0]
    branch = onnx.helper.make_graph(quantised.graph.node, "branch", [], [models.value("y", models.FLOAT, None)])
    inside = models.copy(models.running_sum()[0])
    inside.graph.node.append(models.node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch))
    in_function = models.copy(models.running_sum()[0])
    in_function.functions.append(
        onnx.helper.make_function("own", "Quantised", ["x", "w"], ["y"], quantised.graph.node, quantised.opset_import)
    )
    assert [quantises_dynamically(each) for each in (quantised, inside, in_function)] == [True, True, True]
    assert not quantises_dynamically(models.running_sum()[0])
