"""The activation memory of a model, as its entry tells it."""

import pytest

from app.backends.compiler import Compiler
from app.domain.model import Variant
from app.domain.tensors import TensorSpec
from tests.backends import models
from tests.backends.test_arena import wide
from tests.backends.test_compiler import CPU, three_only

MB = 1 << 20


@pytest.fixture
def compile_model(tmp_path):
    """Compile a model; its megabytes of scratch."""
    compiler = Compiler(tmp_path / "cache", CPU)

    def compile_model(name, built, described):
        return compiler.compile(models.save(tmp_path / name, built), described).scratch_bytes / MB

    yield compile_model
    compiler.close()


def free(built, described):
    return built, models.spec(described.inputs, described.outputs, batching=False)


def test_scratch_is_what_the_largest_size_takes(compile_model):
    assert compile_model("a", *wide(8, (1, 2, 6))) == pytest.approx(48, rel=0.3)


def test_a_model_that_runs_at_its_exact_row_count_is_measured_at_three_rows(compile_model):
    assert compile_model("a", *free(*wide(16))) == pytest.approx(48, rel=0.3)


def test_a_model_is_measured_as_if_it_were_alone(compile_model):
    """Whatever was compiled before left memory in the child that is no model's."""
    alone = compile_model("first", *wide(20))
    compile_model("huge", *wide(100))
    assert compile_model("second", *wide(20)) == alone  # the same entry
    assert compile_model("third", *wide(21)) == pytest.approx(alone, rel=0.3)


def squares(sizes):
    """As many numbers between as the input has, to the second power."""
    nodes = [
        models.node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        models.node("MatMul", ["x", "t"], ["s"]),
        models.node("ReduceMax", ["s", "axes"], ["y"], keepdims=0),
    ]
    values = [models.value("x", models.FLOAT, ["n", "t", 1])], [models.value("y", models.FLOAT, ["n"])]
    built = models.model(nodes, *values, [models.constant("axes", [1, 2])], opset=18)
    variants = [Variant(f"t={extent}", (1,), {("x", 1): extent}) for extent in sizes]
    specs = [TensorSpec("x", "FP32", (-1, -1, 1), 0)], [TensorSpec("y", "FP32", (-1,), 0)]
    return built, models.spec(*specs, variants=variants)


@pytest.mark.parametrize("sizes", [(100, 4096), (4096, 100)])
def test_the_hungriest_variant_counts_wherever_it_stands(compile_model, sizes):
    assert compile_model("a", *squares(sizes)) == pytest.approx(64, rel=0.3)


def test_what_no_probe_runs_is_not_known(compile_model):
    assert compile_model("a", *three_only()) == 0
