"""Requests as clients put them on the wire: the V2 protocol with binary tensors."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from app.domain.tensors import NUMPY_DTYPES

#: Extent of a variable axis, behind the first, of which nothing is said.
FREE_EXTENT = 8

_DATATYPES = {dtype: name for name, dtype in NUMPY_DTYPES.items() if name != "BF16"}


@dataclass(frozen=True)
class InferCall:
    """One POST, the same over and over."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def infer_call(
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    datatypes: Mapping[str, str] | None = None,
    /,
    **parameters: int,
) -> InferCall:
    """A binary V2 request with a binary answer, as tritonclient writes it; `timeout` is one of the parameters.

    `datatypes` are given by name where the dtype of an array does not tell.
    """
    blobs = {name: _bytes(array) for name, array in inputs.items()}
    tensors = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": (datatypes or {}).get(name) or _DATATYPES[array.dtype],
            "parameters": {"binary_data_size": len(blobs[name])},
        }
        for name, array in inputs.items()
    ]
    head = orjson.dumps({"parameters": {"binary_data_output": True, **parameters}, "inputs": tensors})
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return InferCall(f"/v2/models/{model}/infer", head + b"".join(blobs.values()), headers)


def head_of(call: InferCall, /, host: str = "127.0.0.1", **headers: str) -> bytes:
    """The head of a request; of the names of further headers, `_` stands for a hyphen."""
    lines = [f"POST {call.path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(call.body)}"]
    lines += [f"{name}: {value}" for name, value in call.headers.items()]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def random_rows(*shape: int) -> NDArray[np.float32]:
    """Random values of this shape, the same each time."""
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def random_inputs(
    metadata: Mapping[str, Any], rows: int, extents: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[str, NDArray[Any]]]:
    """Datatype and values of every input that the metadata of a model declares, the same each time.

    A variable first axis has `rows`; `extents` are the axes behind it, by name, where variable ones are not to have 8.
    Floats are normal, integers and booleans 0 or 1, texts short. Raises `ValueError` for extents that do not fit.
    """
    if unknown := set(extents) - {each["name"] for each in metadata["inputs"]}:
        raise ValueError(f"model {metadata['name']!r} has no input {', '.join(sorted(unknown))}")
    found = {}
    for each in metadata["inputs"]:
        name, shape = each["name"], list(each["shape"])
        batched = bool(shape) and shape[0] == -1
        wanted = extents.get(name)
        if wanted is not None and len(wanted) != len(shape) - batched:
            raise ValueError(f"input {name!r} of shape {shape} does not take the extents {list(wanted)}")
        rest = wanted or [FREE_EXTENT if extent == -1 else extent for extent in shape[batched:]]
        found[name] = each["datatype"], _values(each["datatype"], (rows, *rest) if batched else tuple(rest))
    return found


def _values(datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    random, dtype = np.random.default_rng(1), NUMPY_DTYPES[datatype]
    if datatype == "BYTES":
        return np.full(shape, b"a few words", np.object_)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def _bytes(array: NDArray[Any]) -> bytes:
    if not array.dtype.hasobject:
        return array.tobytes()
    return b"".join([struct.pack("<I", len(element)) + element for element in array.ravel()])
