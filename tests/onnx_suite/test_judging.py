"""The suite tells what is wrong: its own verdicts, without a server."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from load_tests.onnx_suite.asking import Answer, _from_json, _outputs, _request, _unpack
from load_tests.onnx_suite.batches import open_graph
from load_tests.onnx_suite.cases import Case, rows_of
from load_tests.onnx_suite.judging import Verdict, apart, judge


def write_case(folder, op="Neg", datatype=TensorProto.FLOAT, expected=-1.0, rows=2):
    """One node from `x` to `y`, with one set of data."""
    values = [helper.make_tensor_value_info(name, datatype, [rows, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "graph", values[:1], values[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    data = folder / "test_data_set_0"
    data.mkdir()
    for role, value in (("input", 1.0), ("output", expected)):
        tensor = numpy_helper.from_array(np.full((rows, 3), value, np.float32), role)
        (data / f"{role}_0.pb").write_bytes(tensor.SerializeToString())
    return Case("case", folder)


def answering(status=200, value=-1.0, code="execution_failed"):
    """Somebody who answers everything in the same way."""
    outputs = {"y": np.full((2, 3), value, np.float32)}
    answer = Answer(status, outputs if status == 200 else {}, f'{{"error": "no", "code": "{code}"}}')
    return SimpleNamespace(infer=lambda *_, **__: answer)


def test_a_right_answer_passes(tmp_path):
    assert judge(write_case(tmp_path), "READY", "", answering()).verdict is Verdict.PASSED


@pytest.mark.parametrize("wrong", [answering(value=1.0), answering(status=500), answering(status=400)])
def test_a_wrong_answer_fails_where_plain_onnx_runtime_gives_the_right_one(tmp_path, wrong):
    assert judge(write_case(tmp_path), "READY", "", wrong).verdict is Verdict.FAILED


def test_what_onnx_runtime_computes_otherwise_is_excused_and_a_third_answer_is_not(tmp_path):
    case = write_case(tmp_path, expected=7.0)
    assert judge(case, "READY", "", answering()).reason == "ONNX Runtime computes otherwise"
    assert judge(case, "READY", "", answering(value=3.0)).verdict is Verdict.FAILED


def test_a_refusal_has_to_hold(tmp_path):
    case = write_case(tmp_path)
    assert judge(case, "UNAVAILABLE", "no", answering()).verdict is Verdict.FAILED
    (tmp_path / "other").mkdir()
    unknown = write_case(tmp_path / "other", op="NoSuchOperator")
    assert judge(unknown, "UNAVAILABLE", "no", answering()).reason == "ONNX Runtime cannot load it"


def test_a_type_that_cannot_be_sent_has_to_be_named(tmp_path):
    case = write_case(tmp_path, datatype=TensorProto.FLOAT8E5M2)
    assert judge(case, "UNAVAILABLE", "elements of type FLOAT8E5M2", answering()).verdict is Verdict.REFUSED
    assert judge(case, "UNAVAILABLE", "no", answering()).verdict is Verdict.FAILED
    assert judge(case, "READY", "", answering()).verdict is Verdict.FAILED


def test_answers_are_apart_by_name_shape_type_and_value():
    right = {"y": np.ones(3, np.float32)}
    assert not apart(right, {"y": np.ones(3, np.float32) * 1.0005})
    for wrong in (
        {},
        {"z": np.ones(3, np.float32)},
        {"y": np.ones((3, 1), np.float32)},
        {"y": np.ones(3, np.float64)},
        {"y": np.ones(3, np.float32) * 1.01},
        {"y": np.array([1, 1, np.nan], np.float32)},
    ):
        assert apart(right, wrong)
    assert apart({"y": np.array([b"a"], object)}, {"y": np.array([b"b"], object)})


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    "array",
    [
        np.array([[True, False]]),
        np.array(7, np.int64),
        np.array([1.5, np.nan, -np.inf], np.float16),
        np.array([1.5, 3e38], ml_dtypes.bfloat16),
        np.zeros((0, 3), np.float32),
        np.array([b"", "ö".encode()], object),
        np.array([2**64 - 1], np.uint64),
    ],
)
def test_tensors_survive_the_wire(array, binary):
    head, blobs = _request({"x": array}, binary=binary)
    [member] = head["inputs"]
    found = _outputs([member], b"".join(blobs))["x"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert not apart({"x": array}, {"x": found})


def test_text_and_numbers_are_read_as_the_protocol_has_them():
    assert _unpack(b"\2\0\0\0ab\0\0\0\0", "BYTES", 2).tolist() == [b"ab", b""]
    assert np.isnan(_from_json(["NaN"], "BF16").astype(np.float32)).all()


def test_a_graph_is_opened_where_all_its_tensors_have_the_same_rows(tmp_path):
    case = write_case(tmp_path)
    assert rows_of(case) == 2
    assert open_graph(case, tmp_path / "opened.onnx")
    value = onnx.load(tmp_path / "opened.onnx").graph.input[0]
    assert [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] == ["rows", 3]
    (tmp_path / "one").mkdir()
    assert not open_graph(write_case(tmp_path / "one", rows=1), tmp_path / "none.onnx")
