"""A form is proved only by giving the plain session's answers."""

import numpy as np
import onnx
import pytest

from app.backends.entry import Layout, StoredEntry
from app.backends.proof import NotProvedError, Reference, prove
from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig
from app.domain.errors import BundleError
from app.domain.tensors import TensorSpec
from tests.backends import models

CPU = SessionConfig(PROVIDERS["cpu"], 0, 1)


def attempt(folder, built, candidate, described, form="external"):
    """Prove `candidate`, in the form of a graph with its weights inside, against `built`."""
    models.save(folder, candidate)
    names: dict[str, dict[str, int]] = {variant.key: {} for variant in described.variants}
    entry = StoredEntry(form, optimised=True, weight_bytes=1, layout=Layout(("n",), names))
    return prove(folder, entry, described, Reference(built.SerializeToString(), folder, described, None, CPU), CPU)


def changed(built, change):
    copy = onnx.ModelProto()
    copy.CopyFrom(built)
    change(copy)
    return copy


def nudge(factor):
    def change(built):
        tensor = built.graph.initializer[0]
        values = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

    return change


@pytest.mark.parametrize("form", ["external", "plain"])
def test_the_same_graph_is_proved(tmp_path, form):
    built, described = models.mlp()
    attempt(tmp_path, built, built, described, form)


def test_other_values_are_not_proved(tmp_path):
    built, described = models.mlp()
    with pytest.raises(NotProvedError, match=r"output 'y' differs by .*variant 'default', size 1, 1 rows"):
        attempt(tmp_path, built, changed(built, nudge(1.01)), described)


def test_a_difference_within_rounding_is_proved(tmp_path):
    built, described = models.mlp()
    attempt(tmp_path, built, changed(built, nudge(1.000001)), described)


def test_text_and_numbers_are_compared_exactly(tmp_path):
    built, described = models.text()

    def upper(copy):
        copy.graph.node[0].CopyFrom(models.node("StringConcat", ["x", "x"], ["y"]))
        copy.opset_import[0].version = 20

    with pytest.raises(NotProvedError, match="output 'y' differs"):
        attempt(tmp_path, built, changed(built, upper), described)


def test_another_shape_is_not_proved(tmp_path):
    built, described = models.mlp()

    def wider(copy):
        copy.graph.node[-1].output[0] = "z"
        copy.graph.node.append(models.node("Concat", ["z", "z"], ["y"], axis=1))
        copy.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 62

    with pytest.raises(NotProvedError, match="another shape"):
        attempt(tmp_path, built, changed(built, wider), described)


def test_answers_that_are_no_number_equal_themselves(tmp_path):
    nodes = [models.node("Log", ["x"], ["y"])]
    built = models.model(
        nodes, [models.value("x", models.FLOAT, ["n", 4])], [models.value("y", models.FLOAT, ["n", 4])]
    )
    described = models.spec([TensorSpec("x", "FP32", (-1, 4), 0)], [TensorSpec("y", "FP32", (-1, 4), 0)])
    attempt(tmp_path, built, built, described)


def test_a_size_that_only_the_plain_session_runs_is_a_failure(tmp_path):
    candidate, described = models.fixed_inside()
    built = changed(candidate, lambda copy: copy.graph.initializer[1].CopyFrom(models.constant("shape", [-1, 33])))
    with pytest.raises(Exception, match="Reshape"):
        attempt(tmp_path, built, candidate, described)


def test_a_size_that_no_session_runs_is_the_bundles_fault(tmp_path):
    built, described = models.fixed_inside()
    with pytest.raises(BundleError, match="batch size 2"):
        attempt(tmp_path, built, built, described)
