"""Whether the tensors that a manifest declares are those of the graph."""

from pathlib import Path

from app.domain.errors import BundleError
from app.domain.tensors import TensorSpec


def check_tensors(
    file: Path, key: str, declared: tuple[TensorSpec, ...], graph: tuple[TensorSpec, ...], sizes: tuple[int, ...]
) -> None:
    """Hold the `declared` tensors of one manifest key against the `graph`'s; `sizes` are the compiled batch sizes.

    Raises `BundleError` naming file, key, tensor and remedy. A declared extent may fix what the graph leaves open.
    """
    real = {tensor.name: tensor for tensor in graph}
    for tensor in declared:
        if tensor.name not in real:
            raise BundleError(f"{file}: {key}: the graph has no {tensor.name!r}: write one of {', '.join(real)}")
        _check_tensor(f"{file}: {key}: tensor {tensor.name!r}", tensor, real[tensor.name], sizes)
    names = {tensor.name for tensor in declared}
    for name in real:
        if name not in names:
            raise BundleError(f"{file}: {key}: lacks {name!r} of the graph: declare it too")


def _check_tensor(where: str, tensor: TensorSpec, real: TensorSpec, sizes: tuple[int, ...]) -> None:
    if tensor.datatype != real.datatype:
        raise BundleError(f"{where} is declared {tensor.datatype}, the graph has {real.datatype}: write that")
    if len(tensor.shape) != len(real.shape):
        raise BundleError(
            f"{where} is declared with {len(tensor.shape)} axes, the graph has {len(real.shape)} with extents "
            f"{list(real.shape)}: write a letter for each"
        )
    for axis, (extent, actual) in enumerate(zip(tensor.shape, real.shape, strict=True)):
        if actual == -1 or extent == actual:
            continue
        if axis != tensor.batch_axis:
            raise BundleError(f"{where} is declared {extent} on axis {axis}, the graph fixes {actual}: write that")
        if sizes != (actual,):
            raise BundleError(
                f"{where} has its batch on axis {axis}, which the graph fixes at {actual}: export the model with a "
                f"dynamic batch axis, write compiled_batch_sizes: [{actual}], or use another letter than n or b"
            )
