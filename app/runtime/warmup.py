"""Runs every compiled size of a model before it serves: no first request pays, and the learned costs are seeded."""

import logging
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from app.backends.base import LoadedModel
from app.domain.errors import ServingError
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


def probe_inputs(spec: ModelSpec, variant: str, size: int) -> Tensors:
    """Zero inputs (empty strings for BYTES) of one variant and batch size."""
    return {tensor.name: _zeros(tensor, spec.variants_by_key[variant], size) for tensor in spec.inputs}


def warm_up(
    model: LoadedModel,
    spec: ModelSpec,
    on_device: Callable[[Callable[[], float]], float],
    clock: Callable[[], float],
) -> Costs:
    """Run every (variant, size) twice and return the seconds of each second run.

    `on_device` runs its argument on the dispatcher thread and waits: each run is a command of its own, so loading
    holds the device no longer than one execution. A failing probe is logged and seeds nothing.
    """
    costs: dict[Shape, float] = {}
    for variant, size in shapes(spec):
        inputs = probe_inputs(spec, variant, size)

        def run(variant: str = variant, size: int = size, inputs: Tensors = inputs) -> float:
            begun = clock()
            model.run(variant, size, inputs)
            return clock() - begun

        try:
            on_device(run)
            costs[variant, size] = on_device(run)
        except ServingError as error:
            logger.warning("model %s: probe of variant %r size %d failed: %s", spec.name, variant, size, error)
    return costs


def _zeros(tensor: TensorSpec, variant: Variant, size: int) -> Array:
    shape = tuple(
        size if axis == tensor.batch_axis else variant.dims.get((tensor.name, axis), extent)
        for axis, extent in enumerate(tensor.shape)
    )
    actual = tuple(PROBE_EXTENT if extent == -1 else extent for extent in shape)
    return np.full(actual, b"", dtype=object) if tensor.dtype.hasobject else np.zeros(actual, dtype=tensor.dtype)
