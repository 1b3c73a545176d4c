"""Tensors and what is declared about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Tensors by name. BYTES tensors are object arrays of `bytes`; BF16 tensors are arrays of the raw 16 bits (`uint16`).
Tensors = Mapping[str, Array]

#: V2 datatype → numpy dtype, little-endian, as the arrays in `Tensors` carry it.
NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(np.object_),
}


@dataclass(frozen=True)
class TensorSpec:
    """What is declared about one tensor.

    `datatype` is a V2 name (a key of `NUMPY_DTYPES`); `shape` is in row-major order with -1 for every variable
    extent, the batch axis included; `batch_axis` is None where the tensor has no batch axis. `batch_name` tells batch
    axes apart that nobody declared, by what the graph calls them; those that a manifest declares have none.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_axis: int | None = None
    batch_name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.datatype not in NUMPY_DTYPES:
            raise ValueError(f"tensor {self.name!r}: unknown datatype {self.datatype!r}")
        if self.batch_axis is not None and not 0 <= self.batch_axis < len(self.shape):
            raise ValueError(f"tensor {self.name!r}: batch axis {self.batch_axis} outside shape {list(self.shape)}")

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype that carries the elements."""
        return NUMPY_DTYPES[self.datatype]

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an actual `shape` has the declared rank and fixed extents; the batch extent is free."""
        return len(shape) == len(self.shape) and all(
            declared in (-1, actual) or axis == self.batch_axis
            for axis, (declared, actual) in enumerate(zip(self.shape, shape, strict=True))
        )
