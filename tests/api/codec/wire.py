"""A small client: requests as bytes, replies read back. Written from the protocol, independent of the codec."""

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": np.uint16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
FLOATS = ("FP16", "BF16", "FP32", "FP64")


def objects(elements, shape):
    """An object array of `bytes`."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)


def blob(array, datatype):
    """The binary form of a tensor."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(element)) + element for element in array.flat)
    return array.tobytes()


def numbers(array, datatype):
    """The JSON form of a tensor, nested as its shape."""
    if datatype == "BYTES":
        return objects([element.decode() for element in array.flat], array.shape).tolist()
    if datatype == "BF16":
        array = array.view(ml_dtypes.bfloat16)
    if datatype not in FLOATS:
        return array.tolist()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = array.astype(np.float64)
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return objects([names.get(str(value), value) for value in wide.ravel().tolist()], array.shape).tolist()


def flat(nested):
    """The elements of nested lists, in order."""
    return [leaf for item in nested for leaf in flat(item)] if isinstance(nested, list) else [nested]


def item(name, array, datatype="FP32", form="binary"):
    """An input of a request and its bytes; `form` is binary, nested or flat."""
    member = {"name": name, "shape": list(array.shape), "datatype": datatype}
    if form == "binary":
        data = blob(array, datatype)
        return {**member, "parameters": {"binary_data_size": len(data)}}, data
    nested = numbers(array, datatype)
    return {**member, "data": nested if form == "nested" else flat(nested)}, b""


def request(*items: Any, pad: int = 0, **members: Any) -> tuple[bytes, str]:
    """Body and header length of a request made of items; `pad` spaces follow the JSON."""
    head = json.dumps({"inputs": [member for member, _ in items], **members}).encode() + b" " * pad
    return head + b"".join(data for _, data in items), str(len(head))


def read(encoded):
    """The JSON document of a reply, its binary part, and its headers as a dict."""
    headers, buffers = encoded
    headers, body = dict(headers), b"".join(buffers)
    length = int(headers.get(b"inference-header-content-length", len(body)))
    return json.loads(body[:length]), body[length:], headers


def same(left, right):
    """Equal in dtype, shape and every bit, NaN included."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return left.tolist() == right.tolist() if left.dtype.hasobject else left.tobytes() == right.tobytes()
