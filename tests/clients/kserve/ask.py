"""Asks a server through the KServe SDK's REST client, and prints what it understood of the answers as JSON.

Run by the Python of the client's own environment: `ask.py URL`.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, InferResponse
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ROWS: dict[str, np.ndarray[Any, Any]] = {
    "FP32": np.array([[0.1, -2.5, np.float32(3.4e38)]], np.float32),
    "INT64": np.array([[2**63 - 1, -(2**63), 0]], np.int64),
    "BOOL": np.array([[True, False, True]]),
    "FP16": np.array([[65504.0, -1.5, 2.0**-24]], np.float16),
    "BYTES": np.array([["", "é", "a\0b"]], np.object_),
}


def tensor(datatype: str, rows: int = 1, *, binary: bool) -> InferInput:
    """The input of that datatype."""
    array = np.repeat(ROWS[datatype], rows, axis=0)
    made = InferInput(datatype, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def told(answer: InferResponse) -> dict[str, Any]:
    """What the client has read."""
    outputs = {}
    for output in answer.outputs:
        values = output.as_numpy()
        if values.dtype == np.object_:
            values = np.vectorize(lambda each: each.decode() if isinstance(each, bytes) else each)(values)
        outputs[output.name] = {"datatype": output.datatype, "shape": output.shape, "data": values.tolist()}
    return {"id": answer.id, "model": answer.model_name, "outputs": outputs}


async def outcome(asked: Awaitable[Any]) -> Any:
    """The answer, or the words of the error that the client made of it."""
    try:
        answer = await asked
    except httpx.HTTPStatusError as error:
        return {"error": str(error), "status": error.response.status_code}
    return told(answer) if isinstance(answer, InferResponse) else answer


async def ask(url: str) -> dict[str, Any]:
    """Everything that the client can ask for."""
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))

    def infer(model: str, data: Any) -> Awaitable[Any]:
        return outcome(client.infer(url, data, model_name=model))

    def tensors(model: str, *datatypes: str, rows: int = 1, binary: bool, **more: Any) -> Awaitable[Any]:
        inputs = [tensor(each, rows, binary=binary) for each in datatypes]
        return infer(model, InferRequest(model_name=model, infer_inputs=inputs, **more))

    def plain(shape: list[int], data: Any) -> Awaitable[Any]:
        return infer("floats", {"inputs": [{"name": "FP32", "datatype": "FP32", "shape": shape, "data": data}]})

    answers = {
        "live": outcome(client.is_server_live(url)),
        "ready": outcome(client.is_server_ready(url)),
        "model ready": outcome(client.is_model_ready(url, "floats")),
        "absent model ready": outcome(client.is_model_ready(url, "absent")),
        "binary": tensors("several", "FP32", "INT64", "BOOL", binary=True, request_id="mine"),
        "JSON": tensors("several", "FP32", "INT64", "BOOL", binary=False, parameters={"priority": 1}),
        "binary half": tensors("half", "FP16", binary=True, parameters={"binary_data_output": True}),
        "binary text": tensors("text", "BYTES", binary=True),
        "JSON text": tensors("text", "BYTES", binary=False),
        "many rows": tensors("several", "FP32", "INT64", "BOOL", rows=11, binary=True),
        "binary answer": tensors(
            "floats", "FP32", binary=False, request_outputs=[RequestedOutput("FP32_out", {"binary_data": True})]
        ),
        "nested": plain([2, 2], [[1, 2], [3, 4]]),
        "flat": plain([2, 2], [1, 2, 3, 4]),
        "wrongly nested": plain([2, 2], [[1, 2, 3, 4]]),
        "absent model": tensors("absent", "FP32", binary=True),
        "missing input": tensors("several", "FP32", binary=True),
        "wrong input": tensors("half", "FP32", binary=True),
    }
    try:
        return {name: await answer for name, answer in answers.items()}
    finally:
        await client.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(sys.argv[1]))))
