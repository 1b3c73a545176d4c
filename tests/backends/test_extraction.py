"""Initializers that lie in a file become inputs; the small ones stay."""

import numpy as np
import onnx
import pytest

from app.backends.extraction import UnboundError, take_out_weights
from app.backends.graph import read_graph
from tests.backends import models


def external(built, tmp_path):
    """The graph with its large initializers in a file, unread."""
    onnx.save(
        models.copy(built), str(tmp_path / "m.onnx"), save_as_external_data=True, location="w", size_threshold=1024
    )
    return read_graph(tmp_path / "m.onnx")


def test_what_lies_in_the_file_becomes_an_input_and_says_where_it_is(tmp_path):
    built, _ = models.mlp()
    graph = external(built, tmp_path)
    weights = take_out_weights(graph)
    assert {weight.name: weight.shape for weight in weights} == {"w0": (33, 65), "w1": (65, 129), "w2": (129, 31)}
    assert [value.name for value in graph.graph.input] == ["x", "w0", "w1", "w2"]
    assert [tensor.name for tensor in graph.graph.initializer] == ["b0"]
    onnx.checker.check_model(graph)
    kept = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in built.graph.initializer}
    content = (tmp_path / "w").read_bytes()
    for weight in weights:
        assert weight.onnx_type == models.FLOAT
        count = weight.shape[0] * weight.shape[1]
        read = np.frombuffer(content, np.float32, count, weight.offset).reshape(weight.shape)
        np.testing.assert_array_equal(read, kept[weight.name])


def test_a_graph_without_large_weights_stays_as_it_is(tmp_path):
    graph = external(models.tiny()[0], tmp_path)
    before = graph.SerializeToString()
    assert take_out_weights(graph) == ()
    assert graph.SerializeToString() == before


def test_weights_that_no_input_reaches_are_named(tmp_path):
    graph = external(models.subgraphs()[0], tmp_path)
    with pytest.raises(UnboundError, match="w_then"):
        take_out_weights(graph)
