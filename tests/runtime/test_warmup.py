"""Probes at load: every variant and size twice, on inputs as real as there are."""

import logging

import numpy as np
import pytest

from app.backends.base import CacheEntry
from app.backends.fake import FakeBackend
from app.domain.errors import ExecutionFailed, OutOfMemory, ShuttingDown
from app.domain.model import Variant
from app.domain.tensors import Tensors, TensorSpec
from app.runtime.warmup import PROBE_EXTENT, probe_inputs, shapes, warm_up
from tests.builders import rows_of, spec, tensor

IMAGE = TensorSpec("image", "FP32", (-1, 3, -1, -1), 0)
TEXT = TensorSpec("text", "BYTES", (-1, 2), 0)
STATE = TensorSpec("state", "FP16", (2, -1, 4), 1)
RATE = TensorSpec("rate", "INT64", (), None)
VARIANTS = tuple(Variant(str(s), (1, 4), {("image", 2): s, ("image", 3): s}) for s in (16, 32))
MODEL = spec(inputs=(IMAGE, TEXT, STATE, RATE), variants=VARIANTS)


class Device:
    """Runs commands at once and counts them, on a clock that only the fake backend moves."""

    def __init__(self, model=MODEL, **backend):
        self.now = 0.0
        self.commands = 0
        self.backend = FakeBackend(spend=self.spend, **backend)
        self.inputs: list[Tensors] = []
        self.backend.on_run = lambda variant, size, inputs: self.inputs.append(inputs)
        entry = CacheEntry(__file__, "plain", 1)  # type: ignore[arg-type]
        self.model = self.backend.prepare(entry, model).load()

    def spend(self, seconds):
        self.now += seconds

    def on_device(self, command):
        self.commands += 1
        return command()

    def warm_up(self, sample=None, warm=None):
        return warm_up(self.model, self.model.spec, sample, warm or {}, self.on_device, lambda: self.now)


def test_without_figures_of_the_child_every_size_runs_twice_each_run_a_command_of_its_own():
    device = Device()
    device.warm_up()
    assert [(call.variant, call.size, call.rows) for call in device.backend.calls] == [
        (variant, size, size) for variant in ("16", "32") for size in (1, 4) for _ in range(2)
    ]
    assert device.commands == 8


def test_a_model_without_compiled_sizes_runs_one_row():
    assert list(shapes(spec(sizes=()))) == [("default", 1)]
    assert list(shapes(spec(batching=False))) == [("default", 1)]


def test_the_second_run_is_the_cost():
    runs = iter([100.0, 1.0, 100.0, 2.0, 100.0, 3.0, 100.0, 4.0])
    device = Device(cost=lambda variant, size: next(runs))
    assert device.warm_up() == {("16", 1): 1.0, ("16", 4): 2.0, ("32", 1): 3.0, ("32", 4): 4.0}


def test_a_first_run_that_took_no_longer_than_a_warm_one_of_the_compile_child_is_the_cost():
    runs = iter([3.0, 5.0, 4.5, 2.0, 2.0, 9.0])
    device = Device(cost=lambda variant, size: next(runs))
    costs = device.warm_up(warm={("16", 1): 3.0, ("16", 4): 4.0, ("32", 1): 3.0})
    ran = [(call.variant, call.size) for call in device.backend.calls]
    assert ran == [("16", 1), ("16", 4), ("16", 4), ("32", 1), ("32", 4), ("32", 4)]
    assert costs == {("16", 1): 3.0, ("16", 4): 4.5, ("32", 1): 2.0, ("32", 4): 9.0}


@pytest.mark.parametrize("failure", [ExecutionFailed("boom"), OutOfMemory("boom"), RuntimeError("boom")])
def test_a_failing_probe_is_logged_and_the_others_run(failure, caplog):
    device = Device(cost=lambda variant, size: 1.0)
    device.backend.fail_next(None, None, failure, None, failure)
    with caplog.at_level(logging.WARNING):
        costs = device.warm_up()
    assert set(costs) == {("16", 1), ("32", 4)}
    assert [record.getMessage() for record in caplog.records] == [
        "model m: probe of variant '16' size 4 failed: boom",
        "model m: probe of variant '32' size 1 failed: boom",
    ]


def test_the_end_of_the_server_ends_the_probes():
    device = Device()
    device.backend.fail_next(ShuttingDown("the server is shutting down"))
    with pytest.raises(ShuttingDown):
        device.warm_up()
    assert len(device.backend.calls) == 1


# inputs


def test_without_a_sample_probes_are_zeros_of_the_compiled_shape():
    inputs = probe_inputs(MODEL, "32", 4)
    assert {name: array.shape for name, array in inputs.items()} == {
        "image": (4, 3, 32, 32),
        "text": (4, 2),
        "state": (2, 4, 4),
        "rate": (),
    }
    assert {name: array.dtype for name, array in inputs.items()} == {each.name: each.dtype for each in MODEL.inputs}
    assert not inputs["image"].any()
    assert set(inputs["text"].ravel()) == {b""}


def test_free_axes_have_a_guessed_extent():
    model = spec(inputs=(tensor("x", shape=(-1, -1, 5)),))
    assert probe_inputs(model, "default", 2)["x"].shape == (2, PROBE_EXTENT, 5)
    assert PROBE_EXTENT == 8


SAMPLE = {
    "image": np.arange(2 * 3 * 16 * 16, dtype=np.float32).reshape(2, 3, 16, 16),
    "text": np.array([[b"a", b"b"], [b"c", b"d"]], object),
    "state": np.arange(16, dtype=np.float16).reshape(2, 2, 4),
    "rate": np.array(16000),
}


def test_a_sample_is_used_row_by_row_and_over_again():
    inputs = probe_inputs(MODEL, "16", 4, SAMPLE)
    for row in range(4):
        np.testing.assert_array_equal(inputs["image"][row], SAMPLE["image"][row % 2])
        np.testing.assert_array_equal(inputs["state"][:, row], SAMPLE["state"][:, row % 2])
        assert inputs["text"][row].tolist() == SAMPLE["text"][row % 2].tolist()
    assert inputs["rate"] == SAMPLE["rate"]


def test_a_sample_gives_the_free_axes_their_extent():
    model = spec(inputs=(tensor("x", shape=(-1, -1)),))
    assert probe_inputs(model, "default", 4, {"x": rows_of(0, 1, width=37)})["x"].shape == (4, 37)


def test_a_sample_of_another_variant_is_left_aside():
    inputs = probe_inputs(MODEL, "32", 1, SAMPLE)
    assert inputs["image"].shape == (1, 3, 32, 32)
    assert inputs["rate"] == 0


@pytest.mark.parametrize("sample", [None, {**SAMPLE, "image": np.asfortranarray(SAMPLE["image"])}])
@pytest.mark.parametrize("size", [1, 4])
def test_the_backend_can_read_probes_in_place(sample, size):
    inputs = probe_inputs(MODEL, "16", size, sample)
    assert all(array.flags.c_contiguous for array in inputs.values())
    assert all(array.ndim == len(each.shape) for each, array in zip(MODEL.inputs, inputs.values(), strict=True))
    assert all(each.accepts(inputs[each.name].shape) for each in MODEL.inputs)


def test_a_bundles_sample_reaches_the_device():
    device = Device()
    device.warm_up(SAMPLE)
    assert {inputs["rate"].item() for inputs in device.inputs[:4]} == {16000}
    assert {inputs["rate"].item() for inputs in device.inputs[4:]} == {0}
