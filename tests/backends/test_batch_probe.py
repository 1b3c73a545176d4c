"""What is measured of the rows of a batch, and that it leads to the right verdict."""

from dataclasses import replace

import numpy as np
import pytest

from app.backends.batch_probe import measure
from app.backends.entry import PREPACKED
from app.backends.graph import name_axes, quantises_dynamically
from app.backends.optimise import write_form
from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig
from app.domain.batch_safety import BatchCheck, Beside, Verdict, judge
from app.domain.model import Variant
from app.domain.tensors import TensorSpec
from tests.backends import models

CPU = SessionConfig(PROVIDERS["cpu"], 0, 1)


@pytest.fixture
def probe(tmp_path):
    def probe(built, described, sample=None):
        """As the compile child does it."""
        built = models.copy(built)
        quantised = quantises_dynamically(built)
        layout = name_axes(built, described, tmp_path)
        entry = write_form(PREPACKED, built, tmp_path, tmp_path, layout, CPU)
        return measure(tmp_path, entry, described, sample, CPU, quantised=quantised)

    return probe


def x_to_y(datatype, shape, batch_axis, **changes):
    tensors = [TensorSpec(name, datatype, shape, batch_axis) for name in "xy"]
    return models.spec(tensors[:1], tensors[1:], **changes)


def verdict(probed, described, padding="zeros", **check):
    return judge(described.outputs, probed, BatchCheck(**check), padding)


CLEAN = [
    models.mlp,
    models.convolutions,
    models.recurrent,
    models.two_names,
    models.one_name_twice,
    models.text,
    models.brain_float,
    models.brain_float_and_text,
    models.one_weight_two_kernels,
]


@pytest.mark.parametrize("make", CLEAN)
def test_rows_of_a_true_batch_are_left_alone(probe, make):
    built, described = make()
    probed = probe(built, described)
    assert (probed.failure, probed.quantised) == ("", False)
    assert {each.beside for each in probed.deviations} <= {Beside.PLACE, Beside.SIZE}  # rounding, if anything
    assert verdict(probed, described) == verdict(replace(probed, deviations=()), described)
    assert verdict(probed, described).verdict is Verdict.SAFE


@pytest.mark.parametrize("make", [models.running_sum, models.gated, models.centred])
def test_rows_that_reach_one_another_are_no_batch(probe, make):
    built, described = make()
    found = verdict(probe(built, described), described)
    assert found.verdict is Verdict.UNSAFE
    assert found.figure > 0.05
    assert "output 'y' of a row changes by" in found.reason
    assert "requests run alone" in found.reason


def test_a_row_that_depends_on_those_before_it_alone_is_looked_at_behind_them(probe):
    """As the first of the batch it answers as if it were alone."""
    built, described = models.running_sum()
    changed = {each.beside for each in probe(built, described).deviations}
    assert Beside.ZEROS not in changed
    assert {Beside.NEIGHBOURS, Beside.COPIES} <= changed


def test_a_row_that_depends_on_those_behind_it_alone_is_looked_at_before_them(probe):
    nodes = [models.node("CumSum", ["x", "axis"], ["y"], reverse=1)]
    built, described = models.rows_to_rows(nodes, [models.constant("axis", 0)])
    probed = probe(built, described)
    assert {each.beside for each in probed.deviations} >= {Beside.COPIES, Beside.ZEROS}
    assert verdict(probed, described, padding="repeat").verdict is Verdict.UNSAFE


def test_an_answer_that_depends_on_the_size_alone_is_warned_of(probe):
    nodes = [
        models.node("Shape", ["x"], ["s"], start=0, end=1),
        models.node("Cast", ["s"], ["n"], to=models.FLOAT),
        models.node("Mul", ["x", "n"], ["y"]),
    ]
    built, described = models.rows_to_rows(nodes, sizes=(1, 2))
    probed = probe(built, described)
    assert {each.beside for each in probed.deviations} == {Beside.SIZE}
    found = verdict(probed, described)
    assert found.verdict is Verdict.SAFE
    assert "with another batch size" in found.reason


def test_a_row_that_is_given_its_number_is_looked_at_elsewhere(probe):
    built, described = models.numbered()
    probed = probe(built, described)
    assert {each.beside for each in probed.deviations} == {Beside.PLACE}
    assert verdict(probed, described).verdict is Verdict.UNSAFE


def test_a_scale_that_is_taken_over_the_batch_is_an_approximation_with_a_figure(probe):
    built, described = models.quantised()
    probed = probe(built, described)
    found = verdict(probed, described)
    assert probed.quantised
    assert found.verdict is Verdict.APPROXIMATE
    assert 1e-4 < found.figure <= 0.05
    assert f"changes by {found.figure:.2g} of its range" in found.reason


def test_a_small_deviation_without_a_quantised_node_is_no_approximation(probe):
    """With other inputs it may be large: speech after noise, say, where the probe is noise."""
    built, described = models.quantised()
    assert verdict(replace(probe(built, described), quantised=False), described).verdict is Verdict.UNSAFE


def test_an_extent_that_is_not_the_batch_size_is_no_batch(probe):
    built, described = models.reduced()
    found = verdict(probe(built, described), described)
    assert (found.verdict, found.figure) == (Verdict.UNSAFE, None)
    assert "output 'y' has extent 1 on its batch axis in a batch of 2 rows" in found.reason


def test_a_constant_extent_that_is_one_of_the_sizes_is_found_at_another(probe):
    """Two rows of answers, always: at size 2 nothing is wrong with that."""
    nodes = [models.node("ReduceMax", ["x", "axis"], ["m"], keepdims=1), models.node("Tile", ["m", "twice"], ["y"])]
    values = [models.value(name, models.FLOAT, [extent, 3]) for name, extent in (("x", "n"), ("y", None))]
    initializers = [models.constant("axis", [0]), models.constant("twice", [2, 1])]
    built = models.model(nodes, values[:1], values[1:], initializers, opset=18)
    described = x_to_y("FP32", (-1, 3), 0, sizes=(2, 8))
    assert any("extent 2 on its batch axis in a batch of 8 rows" in e.fault for e in probe(built, described).deviations)


def test_rows_of_zeros_that_get_no_answer_are_told(probe):
    """A caller's rows would be cut from an output that is too short for the batch."""
    nodes = [
        models.node("ReduceL2", ["x", "last"], ["norm"], keepdims=0),
        models.node("Greater", ["norm", "none"], ["some"]),
        models.node("Compress", ["x", "some"], ["y"], axis=0),
    ]
    initializers = [models.constant("last", [1]), models.constant("none", 0.0, np.float32)]
    built, described = models.rows_to_rows(nodes, initializers, outputs=[None, 6])
    probed = probe(built, described)
    assert verdict(probed, described).reason.startswith(
        "output 'y' has extent 1 on its batch axis in a batch of 2 rows"
    )
    assert verdict(probed, described, padding="repeat").verdict is Verdict.SAFE


def test_an_answer_whose_shape_depends_on_the_others_is_no_batch(probe):
    """As many columns as there are positive numbers in all the rows."""
    nodes = [
        models.node("Greater", ["x", "none"], ["positive"]),
        models.node("Cast", ["positive"], ["ones"], to=models.INT64),
        models.node("ReduceSum", ["ones"], ["sum"], keepdims=0),
        models.node("Unsqueeze", ["sum", "first"], ["end"]),
        models.node("Slice", ["x", "first", "end", "axis"], ["y"]),
    ]
    initializers = [
        models.constant("none", 1.2, np.float32),
        models.constant("first", [0]),
        models.constant("axis", [1]),
    ]
    built, described = models.rows_to_rows(nodes, initializers, outputs=["n", None])
    assert "output 'y' of a row has another shape" in verdict(probe(built, described), described).reason


def test_zeros_that_make_everything_nan_are_told_apart_from_repeated_rows(probe):
    built, described = models.poisoned_by_zeros()
    probed = probe(built, described)
    found = verdict(probed, described)
    assert found.verdict is Verdict.UNSAFE
    assert "is a number or none, depending on padding of zeros beside it" in found.reason
    assert "batching.padding: repeat would mend it" in found.reason
    assert verdict(probed, described, padding="repeat").verdict is Verdict.SAFE


def test_padding_that_fails_the_execution_is_told(probe):
    nodes = [models.node("Cast", ["x"], ["y"], to=models.FLOAT)]
    built = models.model(nodes, [models.value("x", models.STRING, ["n"])], [models.value("y", models.FLOAT, ["n"])])
    described = models.spec([TensorSpec("x", "BYTES", (-1,), 0)], [TensorSpec("y", "FP32", (-1,), 0)])
    probed = probe(built, described)
    assert "the execution fails with padding of zeros" in verdict(probed, described).reason
    assert verdict(probed, described, padding="repeat").verdict is Verdict.SAFE


def test_what_is_no_number_is_counted_by_the_elements_that_change(probe):
    nodes = [models.node("CumSum", ["x", "axis"], ["y"])]
    values = [models.value(name, models.INT64, ["n", 4]) for name in "xy"]
    built = models.model(nodes, values[:1], values[1:], [models.constant("axis", 0)])
    described = x_to_y("INT64", (-1, 4), 0)
    found = verdict(probe(built, described), described)
    assert (found.verdict, found.figure) == (Verdict.UNSAFE, 1.0)


def test_inputs_without_a_batch_axis_are_the_same_for_all_rows(probe):
    nodes = [models.node("Mul", ["x", "c"], ["y"])]
    inputs = [models.value("x", models.FLOAT, ["n", 3]), models.value("c", models.FLOAT, [3])]
    built = models.model(nodes, inputs, [models.value("y", models.FLOAT, ["n", 3])])
    specs = [TensorSpec("x", "FP32", (-1, 3), 0), TensorSpec("c", "FP32", (3,))], [TensorSpec("y", "FP32", (-1, 3), 0)]
    described = models.spec(*specs)
    assert verdict(probe(built, described), described).verdict is Verdict.SAFE


def test_every_tensor_has_its_batch_on_its_own_axis(probe):
    nodes = [models.node("Transpose", ["a"], ["t"], perm=[1, 0]), models.node("Add", ["t", "b"], ["s"])]
    nodes.append(models.node("Transpose", ["s"], ["y"], perm=[1, 0]))
    inputs = [models.value("a", models.FLOAT, [5, "n"]), models.value("b", models.FLOAT, ["n", 5])]
    built = models.model(nodes, inputs, [models.value("y", models.FLOAT, [5, "n"])])
    described = models.spec(
        [TensorSpec("a", "FP32", (5, -1), 1), TensorSpec("b", "FP32", (-1, 5), 0)],
        [TensorSpec("y", "FP32", (5, -1), 1)],
    )
    assert verdict(probe(built, described), described).verdict is Verdict.SAFE


def test_a_dependence_on_another_axis_than_the_first_is_found(probe):
    built = models.model(
        [models.node("CumSum", ["x", "axis"], ["y"])],
        [models.value("x", models.FLOAT, [3, "n"])],
        [models.value("y", models.FLOAT, [3, "n"])],
        [models.constant("axis", 1)],
    )
    described = x_to_y("FP32", (3, -1), 1)
    assert verdict(probe(built, described), described).verdict is Verdict.UNSAFE


def test_a_model_of_size_one_is_tried_with_two_rows_because_requests_are_cut(probe):
    built, described = models.running_sum()
    described = models.spec(described.inputs, described.outputs, (1,))
    assert verdict(probe(built, described), described).verdict is Verdict.UNSAFE


def test_every_variant_is_looked_at(probe):
    """Only where the free axis is long do rows reach one another."""
    nodes = [
        models.node("Shape", ["x"], ["s"], start=1, end=2),
        models.node("Greater", ["s", "few"], ["long"]),
        models.node("Cast", ["long"], ["on"], to=models.FLOAT),
        models.node("ReduceSum", ["x"], ["sum"], keepdims=0),
        models.node("Mul", ["sum", "on"], ["extra"]),
        models.node("Add", ["x", "extra"], ["y"]),
    ]
    values = [models.value(name, models.FLOAT, ["n", "t"]) for name in "xy"]
    built = models.model(nodes, values[:1], values[1:], [models.constant("few", [4])], opset=18)
    variants = [Variant(f"t={extent}", (1, 2), {("x", 1): extent}) for extent in (3, 9)]
    described = x_to_y("FP32", (-1, -1), 0, variants=variants)
    places = {each.place for each in probe(built, described).deviations if each.beside is Beside.COPIES}
    assert places == {"variant 't=9', 2 rows"}


def test_the_sample_is_what_is_tried(probe):
    """Only numbers as large as the sample's make rows reach one another."""
    nodes = [
        models.node("ReduceMax", ["x"], ["top"], keepdims=0),
        models.node("Greater", ["top", "limit"], ["large"]),
        models.node("Where", ["large", "top", "zero"], ["extra"]),
        models.node("Add", ["x", "extra"], ["y"]),
    ]
    values = [models.value(name, models.FLOAT, ["n", 3]) for name in "xy"]
    initializers = [models.constant(name, number, np.float32) for name, number in (("limit", 50), ("zero", 0))]
    built = models.model(nodes, values[:1], values[1:], initializers, opset=18)
    described = x_to_y("FP32", (-1, 3), 0)
    assert verdict(probe(built, described), described).verdict is Verdict.SAFE
    sample = {"x": np.array([[100, 1, 2], [200, 3, 4]], np.float32)}
    assert verdict(probe(built, described, sample), described).verdict is Verdict.UNSAFE


def test_a_model_that_takes_no_probe_is_unverified_and_says_why(probe):
    nodes = [models.node("Reshape", ["x", "shape"], ["y"])]
    values = [models.value("x", models.FLOAT, ["n", "t"]), models.value("y", models.FLOAT, ["n", 3])]
    built = models.model(nodes, values[:1], values[1:], [models.constant("shape", [0, 3])])
    described = models.spec([TensorSpec("x", "FP32", (-1, -1), 0)], [TensorSpec("y", "FP32", (-1, 3), 0)])
    found = verdict(probe(built, described), described)
    assert (found.verdict, found.figure) == (Verdict.UNVERIFIED, None)
    assert "Reshape" in found.reason
    assert "sample.npz" in found.reason
    sample = {"x": np.ones((1, 3), np.float32)}
    assert verdict(probe(built, described, sample), described).verdict is Verdict.SAFE


def test_answers_that_hold_no_number_prove_nothing(probe):
    nodes = [models.node("Sqrt", ["x"], ["r"]), models.node("ReduceSum", ["r"], ["sum"], keepdims=1)]
    nodes.append(models.node("Mul", ["x", "sum"], ["y"]))
    built, described = models.rows_to_rows(nodes)
    found = verdict(probe(built, described), described)
    assert found.verdict is Verdict.UNVERIFIED
    assert "holds no number" in found.reason


def test_a_model_that_never_coalesces_is_not_tried(probe):
    built, described = models.running_sum()
    described = models.spec(described.inputs, described.outputs, batching=False)
    assert probe(built, described).deviations == ()


@pytest.mark.parametrize("separator", [None, " ", ",", ";", "|"])
def test_text_that_is_cut_up_into_as_many_parts_as_the_longest_has_is_no_batch(probe, separator):
    """What is sent alone is answered without the empty parts that a longer neighbour adds."""
    delimiter = {} if separator is None else {"delimiter": separator}
    nodes = [models.node("StringSplit", ["x"], ["y", "counts"], **delimiter)]
    inputs, outputs = [models.value("x", models.STRING, ["n"])], [models.value("y", models.STRING, ["n", "parts"])]
    built = models.model(nodes, inputs, outputs, opset=20)
    described = models.spec([TensorSpec("x", "BYTES", (-1,), 0)], [TensorSpec("y", "BYTES", (-1, -1), 0)])
    found = verdict(probe(built, described), described)
    assert found.verdict is Verdict.UNSAFE
    assert "another shape" in found.reason


@pytest.mark.parametrize("upper", [0, 1])
def test_a_row_that_is_masked_by_its_number_is_no_batch(probe, upper):
    """A triangle of integers: the first rows may hold nothing that it takes away."""
    nodes = [models.node("Trilu", ["x"], ["y"], upper=upper)]
    values = [models.value(name, models.INT64, ["n", 5]) for name in "xy"]
    built = models.model(nodes, values[:1], values[1:], opset=14)
    described = x_to_y("INT64", (-1, 5), 0)
    assert verdict(probe(built, described), described).verdict is Verdict.UNSAFE
