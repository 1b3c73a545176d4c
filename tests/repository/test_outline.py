"""What a graph takes and gives is what a whole parse says, whatever else is in the file."""

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from app.repository.graph import describe
from app.repository.outline import Outline, read_outline

WEIGHTS = numpy_helper.from_array(np.arange(600, dtype=np.float32), "weights")


def _model(weights: TensorProto = WEIGHTS) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 600]) for name in ("x", "weights", "y")]
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(1, np.float32), "sparse"), numpy_helper.from_array(np.zeros(1, np.int64)), [600]
    )
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "weights"], ["y"])],
        "graph",
        values[:2],
        values[2:],
        [weights, numpy_helper.from_array(np.zeros(3), "other")],
        doc_string="text",
        sparse_initializer=[sparse],
    )
    return helper.make_model(graph, producer_name="test")


def _parsed(content: bytes) -> Outline:
    graph = onnx.ModelProto.FromString(content).graph
    constants = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return Outline(list(graph.input), list(graph.output), constants)


@pytest.fixture
def outline_of(tmp_path):
    def outline_of(content: bytes) -> Outline:
        (tmp_path / "model.onnx").write_bytes(content)
        return read_outline(tmp_path / "model.onnx")

    return outline_of


def test_outline_is_what_a_whole_parse_says(outline_of):
    content = _model().SerializeToString()
    assert outline_of(content) == _parsed(content)
    assert _parsed(content).constants == {"weights", "other", "sparse"}


def test_graph_in_two_parts_is_one_graph(outline_of):
    more = onnx.ModelProto()
    more.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, []))
    content = _model().SerializeToString() + more.SerializeToString()
    assert [value.name for value in outline_of(content).outputs] == ["y", "z"]
    assert outline_of(content) == _parsed(content)


def test_fields_of_every_kind_are_stepped_over(outline_of):
    unknown = b"\x80\x7d\xff\xff\xff\xff\x0f" + b"\x81\x7d12345678" + b"\x85\x7d1234" + b"\x82\x7d\x03abc"
    content = unknown + _model().SerializeToString() + unknown
    assert outline_of(content) == _parsed(content)


def test_file_that_is_cut_off_anywhere_is_seen_as_by_a_whole_parse(outline_of):
    content = _model(numpy_helper.from_array(np.arange(5, dtype=np.float32), "weights")).SerializeToString()
    for end in range(len(content)):
        try:
            expected = _parsed(content[:end])
        except DecodeError:
            with pytest.raises(DecodeError):
                outline_of(content[:end])
        else:
            assert outline_of(content[:end]) == expected


@pytest.mark.parametrize("content", [bytes(100), b"\x0b\x0c", b"\xff" * 11])
def test_what_no_writer_writes_is_refused(outline_of, content):
    with pytest.raises(DecodeError):
        outline_of(content)


def _head(number: int, length: int) -> bytes:
    """Key and length of a field."""
    head = []
    for left in (number << 3 | 2, length):
        while left >= 0x80:
            head.append(left & 0x7F | 0x80)
            left >>= 7
        head.append(left)
    return bytes(head)


def test_weights_are_stepped_over_however_large(tmp_path):
    hole = 1 << 33
    rest = _model().graph.SerializeToString()
    tensor = TensorProto(name="large").SerializeToString() + _head(TensorProto.RAW_DATA_FIELD_NUMBER, hole)
    tensor = _head(onnx.GraphProto.INITIALIZER_FIELD_NUMBER, len(tensor) + hole) + tensor
    with (tmp_path / "model.onnx").open("wb") as file:
        file.write(_head(onnx.ModelProto.GRAPH_FIELD_NUMBER, len(tensor) + hole + len(rest)) + tensor)
        file.seek(hole, 1)
        file.write(rest)
    outline = read_outline(tmp_path / "model.onnx")
    assert outline.constants == {"large", "weights", "other", "sparse"}
    assert [value.name for value in outline.outputs] == ["y"]
    inputs, _ = describe(tmp_path / "model.onnx")
    assert [spec.name for spec in inputs] == ["x"]
