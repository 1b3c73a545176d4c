"""What every backend does. A test module imports these tests and provides the fixtures `backend` and `load`."""

import numpy as np
import pytest

from app.domain.errors import ExecutionFailed
from app.domain.model import Variant
from tests.backends import models


def rows_of(tensors, specs, rows):
    """Some rows of every tensor that has a batch axis."""
    axes = {tensor.name: tensor.batch_axis for tensor in specs}
    return {
        name: array if axes[name] is None else np.ascontiguousarray(np.take(array, rows, axes[name]))
        for name, array in tensors.items()
    }


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        assert actual[name].shape == array.shape
        if array.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(actual[name], array)


MAKERS = [
    models.mlp,
    models.convolutions,
    models.recurrent,
    models.two_names,
    models.text,
    models.brain_float,
    models.brain_float_and_text,
]


@pytest.mark.parametrize("make", MAKERS)
def test_every_row_of_every_size_is_answered_as_if_it_were_alone(load, make):
    built, described = make()
    model = load(built, described)
    variant = described.variants[0].key
    sizes = described.sizes(variant)
    inputs = models.inputs_for(described, sizes[-1])
    alone = [model.run(variant, 1, rows_of(inputs, described.inputs, [row])) for row in range(sizes[-1])]
    for size in sizes:
        batched = model.run(variant, size, rows_of(inputs, described.inputs, list(range(size))))
        for row in range(size):
            assert_close(rows_of(batched, described.outputs, [row]), alone[row])


def test_a_large_batch_after_a_small_one_is_whole(load):
    built, described = models.mlp()
    model = load(built, described)
    large, small = models.inputs_for(described, 10, seed=1), models.inputs_for(described, 2, seed=2)
    first = model.run("default", 10, large)
    model.run("default", 2, small)
    assert_close(model.run("default", 10, large), first)


def test_outputs_outlive_the_next_run(load):
    built, described = models.mlp()
    model = load(built, described)
    first = model.run("default", 2, models.inputs_for(described, 2, seed=1))
    kept = {name: array.copy() for name, array in first.items()}
    model.run("default", 2, models.inputs_for(described, 2, seed=2))
    assert_close(first, kept)


@pytest.mark.parametrize("make", MAKERS)
def test_inputs_are_left_as_they_are(load, make):
    built, described = make()
    model = load(built, described)
    inputs = models.inputs_for(described, 2)
    kept = {name: array.copy() for name, array in inputs.items()}
    for array in inputs.values():
        array.flags.writeable = False
    model.run(described.variants[0].key, 2, inputs)
    assert_close(inputs, kept)


def test_each_variant_has_its_own_shapes(load):
    built, described = models.convolutions()
    model = load(built, described)
    for variant in described.variants:
        shape = (2, 3, variant.dims["x", 2], variant.dims["x", 3])
        outputs = model.run(variant.key, 2, {"x": np.ones(shape, np.float32)})
        assert outputs["y"].shape == (2, 37)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_model_without_compiled_sizes_runs_at_any_row_count(load, rows):
    built, described = models.mlp()
    described = models.spec(described.inputs, described.outputs, batching=False)
    model = load(built, described)
    assert described.sizes("default") == ()
    assert model.run("default", rows, models.inputs_for(described, rows))["y"].shape == (rows, 31)


def test_a_model_without_a_batch_axis_runs(load):
    built, described = models.no_batch()
    model = load(built, described)
    assert model.run("default", 1, models.inputs_for(described, 1))["y"].shape == (33,)


def test_a_wrong_number_of_rows_is_an_execution_failure_and_the_model_goes_on(load):
    built, described = models.mlp()
    model = load(built, described)
    with pytest.raises(ExecutionFailed):
        model.run("default", 2, models.inputs_for(described, 3))
    assert model.run("default", 2, models.inputs_for(described, 2))["y"].shape == (2, 31)


def test_terminating_between_runs_ends_none(load):
    built, described = models.mlp()
    model = load(built, described)
    model.terminate()
    assert model.run("default", 1, models.inputs_for(described, 1))["y"].shape == (1, 31)


def test_unloading_twice_is_unloading_once_and_then_nothing_runs(load):
    built, described = models.mlp()
    model = load(built, described)
    model.unload()
    model.unload()
    with pytest.raises(ExecutionFailed):
        model.run("default", 1, models.inputs_for(described, 1))


def test_unloading_one_model_leaves_another_over_the_same_entry(load):
    built, described = models.mlp()
    first, second = load(built, described), load(built, described)
    inputs = models.inputs_for(described, 2)
    expected = first.run("default", 2, inputs)
    first.unload()
    assert_close(second.run("default", 2, inputs), expected)


def test_a_model_says_what_it_weighs_and_what_runs_it(load):
    built, described = models.mlp()
    model = load(built, described)
    assert model.weight_bytes > 0
    assert model.provider.endswith("ExecutionProvider")


def test_a_compiled_entry_says_its_form_and_why_it_is_not_the_best(backend, tmp_path):
    built, described = models.mlp()
    entry = backend.compile(models.save(tmp_path, built), described)
    assert entry.form in ("prepacked", "bound", "external", "plain")
    assert (entry.reason == "") == (entry.form in ("prepacked", "bound"))
    assert entry.weight_bytes > 0


def test_memory_in_use_counts_what_is_loaded(backend, load):
    built, described = models.mlp()
    model = load(built, described)
    assert backend.memory().in_use >= model.weight_bytes


def test_sizes_of_one_variant_are_no_sizes_of_another(load):
    built, described = models.convolutions()
    first, second = described.variants
    variants = [Variant(first.key, (1,), first.dims), Variant(second.key, (2,), second.dims)]
    model = load(built, models.spec(described.inputs, described.outputs, variants=variants))
    shape = (2, 3, first.dims["x", 2], first.dims["x", 3])
    with pytest.raises(ExecutionFailed):
        model.run(first.key, 2, {"x": np.ones(shape, np.float32)})
