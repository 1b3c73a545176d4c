"""Requests and answers on the wire, written from the protocol and not from the server's own codec."""

import json
import struct
from collections.abc import Mapping
from http.client import HTTPConnection
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from load_tests.onnx_suite.cases import Array, Tensors, datatype_of

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{
        f"{sign}INT{bits}": np.dtype(f"<{kind}{bits // 8}")
        for sign, kind in (("U", "u"), ("", "i"))
        for bits in (8, 16, 32, 64)
    },
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}

_HEAD = "Inference-Header-Content-Length"


class Answer(NamedTuple):
    """What came back: the outputs of a 200, else the body as text; `parameters` are those of the response."""

    status: int
    outputs: Tensors
    text: str = ""
    parameters: Mapping[str, Any] = {}


class Asker:
    """One connection, kept open. Not for two threads at once."""

    def __init__(self, address: str) -> None:
        self._connection = HTTPConnection(address, timeout=120)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def infer(self, model: str, inputs: Tensors, *, binary: bool) -> Answer:
        """Ask a model by JSON or by binary tensors, and be answered in the same way."""
        head, blobs = _request(inputs, binary=binary)
        document = json.dumps(head, allow_nan=False).encode()
        headers = {_HEAD: str(len(document))} if binary else {}
        self._connection.request("POST", f"/v2/models/{model}/infer", b"".join([document, *blobs]), headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            return Answer(response.status, {}, body.decode(errors="replace"))
        length = int(response.headers.get(_HEAD, len(body)))
        reply = json.loads(body[:length])
        return Answer(200, _outputs(reply["outputs"], body[length:]), "", reply.get("parameters", {}))

    def get(self, path: str) -> Any:
        """The JSON that a GET answers."""
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())

    def post(self, path: str, document: object, token: str = "") -> Any:
        """The JSON that a POST answers. Raises `RuntimeError` where it is refused."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._connection.request("POST", path, json.dumps(document), headers)
        response = self._connection.getresponse()
        body = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {body}")
        return json.loads(body) if body else None


def _request(inputs: Tensors, *, binary: bool) -> tuple[dict[str, Any], list[bytes]]:
    members, blobs = [], []
    for name, array in inputs.items():
        member: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array)}
        if binary:
            blobs.append(_pack(array))
            member["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            member["data"] = _to_json(array)
        members.append(member)
    return {"parameters": {"binary_data_output": binary, "explain": True}, "inputs": members}, blobs


def _pack(array: Array) -> bytes:
    if array.dtype.hasobject:
        return b"".join(struct.pack("<I", len(element)) + element for element in array.flat)
    return array.tobytes()


def _to_json(array: Array) -> list[Any]:
    if array.dtype.hasobject:
        return [element.decode() for element in array.flat]
    if array.dtype.kind in "biu":
        return list(array.ravel().tolist())
    return [_named(value) for value in array.astype(np.float64).ravel().tolist()]


def _named(value: float) -> float | str:
    """JSON has no name for what is no number."""
    return value if np.isfinite(value) else "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _outputs(members: list[dict[str, Any]], rest: bytes) -> Tensors:
    outputs = {}
    for member in members:
        size = member.get("parameters", {}).get("binary_data_size")
        datatype, shape = member["datatype"], tuple(member["shape"])
        if size is None:
            outputs[member["name"]] = _from_json(member["data"], datatype).reshape(shape)
        else:
            outputs[member["name"]] = _unpack(rest[:size], datatype, prod(shape)).reshape(shape)
            rest = rest[size:]
    if rest:
        raise ValueError(f"{len(rest)} bytes follow the last output")
    return outputs


def _from_json(data: list[Any], datatype: str) -> Array:
    if datatype == "BYTES":
        return _texts([text.encode() for text in data])
    if datatype in ("BF16", "FP16", "FP32", "FP64"):
        return np.array([float(value) for value in data], np.float64).astype(_DTYPES[datatype])
    return np.array(data, _DTYPES[datatype])


def _unpack(raw: bytes, datatype: str, count: int) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, _DTYPES[datatype], count)
    texts = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", raw)
        texts.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return _texts(texts)


def _texts(elements: list[bytes]) -> Array:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
