"""Requests as clients put them on the wire: the V2 protocol with binary tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

_DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}


@dataclass(frozen=True)
class InferCall:
    """One POST, the same over and over."""

    path: str
    body: bytes
    headers: Mapping[str, str]


def infer_call(model: str, inputs: Mapping[str, NDArray[Any]], **parameters: int) -> InferCall:
    """A binary V2 request with a binary answer, as tritonclient writes it; `timeout` is one of the parameters."""
    tensors = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": _DATATYPES[array.dtype],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    head = orjson.dumps({"parameters": {"binary_data_output": True, **parameters}, "inputs": tensors})
    body = head + b"".join([array.tobytes() for array in inputs.values()])
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return InferCall(f"/v2/models/{model}/infer", body, headers)


def random_rows(*shape: int) -> NDArray[np.float32]:
    """Random values of this shape, the same each time."""
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
