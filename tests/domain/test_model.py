"""What a model is: which requests merge, which variant takes them, how many rows they have."""

import numpy as np
import pytest

from app.domain.errors import InvalidRequest, ShapeNotCompiled
from app.domain.model import MAX_CONSTANT_BYTES, MergeKey, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from tests.builders import rows_of, spec, tensor

BATCHED = tensor("x")
CONSTANT = TensorSpec("rate", "INT64", (), None)
IMAGE = TensorSpec("image", "FP32", (-1, 3, -1, -1), 0)
AXIS_1 = TensorSpec("state", "FP32", (2, -1), 1)


def resolutions(*extents):
    """A model with one variant per (height, width)."""
    variants = tuple(Variant(f"{h}x{w}", (1, 4), {("image", 2): h, ("image", 3): w}) for h, w in extents)
    return spec(inputs=(IMAGE,), variants=variants)


def image(rows, height, width):
    return {"image": np.zeros((rows, 3, height, width), np.float32)}


@pytest.mark.parametrize(
    ("inputs", "outputs", "batching", "coalesces"),
    [
        ((BATCHED,), (tensor("y"),), True, True),
        ((BATCHED,), (tensor("y"),), False, False),
        ((BATCHED, CONSTANT), (tensor("y"),), True, True),
        ((BATCHED, AXIS_1), (AXIS_1,), True, True),
        ((CONSTANT,), (tensor("y"),), True, False),
        ((BATCHED,), (tensor("y"), CONSTANT), True, False),
        ((BATCHED,), (CONSTANT,), True, False),
    ],
)
def test_a_model_coalesces_when_every_output_and_one_input_have_a_batch_axis(inputs, outputs, batching, coalesces):
    model = spec(inputs=inputs, outputs=outputs, batching=batching)
    assert model.coalescible is coalesces


def test_a_model_without_outputs_merges_nothing():
    assert not ModelSpec("m", (BATCHED,), (), ()).coalescible


def test_sizes_are_those_of_the_variant_and_none_where_nothing_merges():
    assert spec(sizes=(1, 4)).sizes("default") == (1, 4)
    assert spec(sizes=(1, 4)).largest("default") == 4
    alone = spec(sizes=(1, 4), batching=False)
    assert alone.sizes("default") == ()
    assert alone.largest("default") is None
    exact = spec(sizes=())
    assert exact.largest("default") is None


def test_tensors_are_found_by_name():
    model = spec(inputs=(BATCHED, CONSTANT), client_inputs=(IMAGE,), client_outputs=(AXIS_1,))
    assert set(model.inputs_by_name) == {"x", "rate"}
    assert set(model.client_inputs_by_name) == {"image"}
    assert set(model.client_outputs_by_name) == {"state"}
    assert set(model.variants_by_key) == {"default"}


# rows


def test_rows_are_counted_along_each_inputs_own_axis():
    model = spec(inputs=(BATCHED, AXIS_1, CONSTANT))
    assert model.rows_of({"x": rows_of(0, 5), "state": np.zeros((2, 5)), "rate": np.array(1)}) == 5


def test_rows_that_disagree_name_both_inputs_and_both_counts():
    model = spec(inputs=(BATCHED, AXIS_1))
    with pytest.raises(InvalidRequest) as caught:
        model.rows_of({"x": rows_of(0, 5), "state": np.zeros((2, 4))})
    assert caught.value.message == "input 'state' has batch size 4, which does not match the 5 of input 'x'"


def test_no_rows_are_an_empty_batch():
    with pytest.raises(InvalidRequest, match="'x' has 0 rows") as caught:
        spec().rows_of({"x": rows_of(0, 0)})
    assert caught.value.code == "empty_batch"


def test_a_request_without_a_batch_axis_is_one_row():
    assert spec(inputs=(CONSTANT,)).rows_of({"rate": np.array(16000)}) == 1


def test_extents_that_are_no_batch_may_be_empty():
    assert spec(inputs=(tensor("x", shape=(-1, -1)),)).rows_of({"x": np.zeros((2, 0), np.float32)}) == 2


# variants


def test_the_variant_is_the_one_whose_extents_the_tensors_have():
    model = resolutions((224, 224), (224, 320))
    assert model.variant_of(image(1, 224, 224)) == "224x224"
    assert model.variant_of(image(9, 224, 320)) == "224x320"


def test_a_shape_that_no_variant_takes_is_told_with_those_that_are_taken():
    with pytest.raises(ShapeNotCompiled) as caught:
        resolutions((224, 224), (64, 64)).variant_of(image(2, 224, 100))
    assert caught.value.message == (
        "no compiled program for input shape [2, 3, 224, 100] of input 'image'; "
        "compiled are [-1, 3, 224, 224], [-1, 3, 64, 64]"
    )


def test_a_combination_that_no_variant_takes_names_every_input_of_it():
    left, right = TensorSpec("a", "FP32", (-1, -1), 0), TensorSpec("b", "FP32", (-1, -1), 0)
    variants = tuple(Variant(f"s={s}", (1,), {("a", 1): s, ("b", 1): s}) for s in (8, 16))
    model = spec(inputs=(left, right), variants=variants)
    with pytest.raises(ShapeNotCompiled) as caught:
        model.variant_of({"a": np.zeros((1, 8)), "b": np.zeros((1, 16))})
    assert caught.value.message == (
        "no compiled program for input shape [1, 8] of input 'a' and [1, 16] of input 'b'; "
        "compiled are [-1, 8] and [-1, 8], [-1, 16] and [-1, 16]"
    )


# merge keys


def test_fixed_shapes_share_one_key():
    model = spec()
    assert model.merge_key({"x": rows_of(0, 1)}, 1) is model.merge_key({"x": rows_of(5, 3)}, 2)


def test_a_model_with_one_fixed_input_queues_its_requests_as_it_would_by_looking_at_them():
    model, inputs = spec(), {"x": rows_of(0, 3)}
    assert model.simple is not None
    name, axis, key, largest = model.simple
    assert inputs[name].shape[axis] == model.rows_of(inputs)
    assert key is model.merge_key(inputs, 1)
    assert largest == model.largest(key.variant)


@pytest.mark.parametrize(
    "model",
    [
        spec(inputs=(tensor("x", shape=(-1, -1)),)),
        spec(inputs=(BATCHED, tensor("more", shape=(-1, 2)))),
        spec(inputs=(BATCHED, CONSTANT)),
        resolutions((8, 8), (16, 16)),
        spec(batching=False),
    ],
    ids=["free axis", "two inputs", "constant", "variants", "no batches"],
)
def test_requests_of_any_other_model_are_looked_at(model):
    assert model.simple is None


def test_variants_do_not_merge():
    model = resolutions((8, 8), (16, 16))
    assert model.merge_key(image(1, 8, 8), 1) != model.merge_key(image(1, 16, 16), 2)
    assert model.merge_key(image(1, 8, 8), 1) == model.merge_key(image(4, 8, 8), 2)


def test_free_extents_merge_only_when_equal():
    model = spec(inputs=(tensor("x", shape=(-1, -1)),))
    keys = {model.merge_key({"x": np.zeros((rows, width))}, 1) for rows, width in [(1, 7), (4, 7), (1, 9)]}
    assert len(keys) == 2


def test_free_extents_of_inputs_without_a_batch_axis_count_too():
    model = spec(inputs=(BATCHED, TensorSpec("table", "UINT8", (-1,), None), TensorSpec("more", "UINT8", (-1,), None)))
    left = {"x": rows_of(0, 1), "table": np.zeros(1, np.uint8), "more": np.zeros(2, np.uint8)}
    right = {"x": rows_of(0, 1), "table": np.zeros(2, np.uint8), "more": np.zeros(1, np.uint8)}
    assert model.merge_key(left, 1) != model.merge_key(right, 2)


def test_constants_merge_only_when_their_bytes_are_equal():
    model = spec(inputs=(BATCHED, CONSTANT))
    low, high, again = (model.merge_key({"x": rows_of(0, 1), "rate": np.array(rate)}, 1) for rate in (8, 16, 8))
    assert low == again
    assert low != high
    assert not low.alone


@pytest.mark.parametrize(("extra", "alone"), [(0, 0), (1, 7)])
def test_constants_above_a_kilobyte_never_merge(extra, alone):
    model = spec(inputs=(BATCHED, TensorSpec("table", "UINT8", (-1,), None)))
    inputs = {"x": rows_of(0, 1), "table": np.zeros(MAX_CONSTANT_BYTES + extra, np.uint8)}
    assert model.merge_key(inputs, 7).alone == alone


def test_constant_strings_never_merge():
    model = spec(inputs=(BATCHED, TensorSpec("prompt", "BYTES", (1,), None)))
    inputs = {"x": rows_of(0, 1), "prompt": np.array([b"a"], object)}
    assert model.merge_key(inputs, 3) == MergeKey("default", alone=3)


def test_requests_of_a_model_that_does_not_coalesce_are_told_apart_by_their_tokens():
    model = spec(batching=False)
    keys = [model.merge_key({"x": rows_of(0, 1)}, token) for token in (1, 2)]
    assert keys[0] != keys[1]


def test_text_must_be_utf8_and_the_complaint_names_tensor_and_element():
    model = spec(inputs=(tensor("x"), tensor("s", "BYTES", (-1, 2))))
    assert model.text_inputs == ("s",)
    text = np.array([["é".encode(), b""]], np.object_)
    model.check_text({"x": np.zeros((1, 3), np.float32), "s": text})
    text[0, 1] = b"ab\xff"
    with pytest.raises(InvalidRequest, match=r"'s'.*element 1 is not UTF-8"):
        model.check_text({"s": text})


def test_a_meta_model_takes_any_bytes():
    assert spec(inputs=(tensor("s", "BYTES"),), meta_models=()).text_inputs == ()


def open_inputs(*names):
    """Inputs `a`, `b`, …, whose first axis is open in the graph, under these names."""
    return tuple(TensorSpec(each, "FP32", (-1, 2), 0, name) for each, name in zip("abc", names, strict=False))


def shapes(*extents):
    return {name: (extent, 2) for name, extent in zip("abc", extents, strict=False)}


def test_open_axes_of_other_names_may_differ_where_nothing_merges():
    """Queries against documents, say: the first axes are two extents, not one batch."""
    model = spec(inputs=open_inputs("queries", "documents"), outputs=(CONSTANT,))
    assert model.rows_of(zeros(shapes(2, 5))) == 2
    model.check_rows(shapes(2, 5))


def test_open_axes_of_one_name_are_one_extent_though_nothing_merges():
    model = spec(inputs=open_inputs("n", "m", "n"), outputs=(CONSTANT,))
    model.check_rows(shapes(2, 5, 2))
    with pytest.raises(InvalidRequest, match="'c' has batch size 3, which does not match the 2 of input 'a'"):
        model.check_rows(shapes(2, 5, 3))


def test_open_axes_are_one_batch_where_requests_merge_whatever_they_are_called():
    model = spec(inputs=open_inputs("n", "m"), outputs=(tensor("y"),))
    with pytest.raises(InvalidRequest, match="does not match"):
        model.check_rows(shapes(2, 5))
    with pytest.raises(InvalidRequest, match="does not match"):
        model.rows_of(zeros(shapes(2, 5)))


def test_an_open_axis_may_be_empty_where_nothing_merges_and_nobody_declared_a_batch():
    model = spec(inputs=open_inputs("n"), outputs=(CONSTANT,))
    assert model.rows_of(zeros(shapes(0))) == 1
    model.check_rows(shapes(0))


@pytest.mark.parametrize(("inputs", "outputs"), [(open_inputs("n"), (tensor("y"),)), (open_inputs(""), (CONSTANT,))])
def test_a_batch_may_not_be_empty_where_it_merges_or_was_declared(inputs, outputs):
    with pytest.raises(InvalidRequest, match="0 rows") as refusal:
        spec(inputs=inputs, outputs=outputs).check_rows(shapes(0))
    assert refusal.value.code == "empty_batch"


def zeros(shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
