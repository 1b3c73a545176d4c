"""Runs every compiled size of a model before it serves: no first request pays, and the learned costs are seeded."""

import logging
from collections.abc import Callable, Iterator, Mapping
from math import inf

import numpy as np

from app.backends.base import LoadedModel
from app.domain.errors import ShuttingDown
from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Array, Tensors, TensorSpec

logger = logging.getLogger(__name__)

#: Extent of free axes in a probe.
PROBE_EXTENT = 8

Shape = tuple[str, int]  # variant, size

Costs = Mapping[Shape, float]  # seconds


def shapes(spec: ModelSpec) -> Iterator[Shape]:
    """Every (variant, size) that a model is run at; size 1 where it runs at the exact row count."""
    for variant in spec.variants:
        for size in spec.sizes(variant.key) or (1,):
            yield variant.key, size


def probe_inputs(spec: ModelSpec, variant: str, size: int, sample: Tensors | None = None) -> Tensors:
    """Inputs of one variant and batch size: the rows of `sample`, in turn, where it has the variant's shape.

    Else zeros (empty strings for BYTES), with a guess for the free axes, on which the cost depends.
    """
    dims = spec.variants_by_key[variant].dims
    if sample is None or any(sample[name].shape[axis] != extent for (name, axis), extent in dims.items()):
        return {tensor.name: _zeros(tensor, spec.variants_by_key[variant], size) for tensor in spec.inputs}
    return {tensor.name: _rows(sample[tensor.name], tensor, size) for tensor in spec.inputs}


def warm_up(
    model: LoadedModel,
    spec: ModelSpec,
    sample: Tensors | None,
    warm: Costs,
    on_device: Callable[[Callable[[], float]], float],
    clock: Callable[[], float],
) -> Costs:
    """Run every (variant, size), and once more where the first run paid for being the first; the seconds of each last.

    It did not where it took no longer than `warm`, what a run took in the compile child once it was warm: other models
    are spared another. `on_device` runs its argument on the dispatcher thread and waits: each run is a command of its
    own, so loading holds the device no longer than one execution. A failing probe is logged and seeds nothing. Raises
    `ShuttingDown`.
    """
    costs: dict[Shape, float] = {}
    for variant, size in shapes(spec):
        inputs = probe_inputs(spec, variant, size, sample)

        def run(variant: str = variant, size: int = size, inputs: Tensors = inputs) -> float:
            begun = clock()
            model.run(variant, size, inputs)
            return clock() - begun

        try:
            seconds = on_device(run)
            if seconds > warm.get((variant, size), -inf):
                seconds = on_device(run)
            costs[variant, size] = seconds
        except ShuttingDown:
            raise
        except Exception as error:
            logger.warning("model %s: probe of variant %r size %d failed: %s", spec.name, variant, size, error)
    return costs


def _rows(array: Array, tensor: TensorSpec, size: int) -> Array:
    """The array with `size` rows, contiguous; as it is where there is no batch axis."""
    if tensor.batch_axis is None:
        return np.array(array, order="C")
    rows: Array = array.take(np.arange(size) % array.shape[tensor.batch_axis], tensor.batch_axis)
    return rows


def _zeros(tensor: TensorSpec, variant: Variant, size: int) -> Array:
    shape = tuple(
        size if axis == tensor.batch_axis else variant.dims.get((tensor.name, axis), extent)
        for axis, extent in enumerate(tensor.shape)
    )
    actual = tuple(PROBE_EXTENT if extent == -1 else extent for extent in shape)
    return np.full(actual, b"", dtype=object) if tensor.dtype.hasobject else np.zeros(actual, dtype=tensor.dtype)
