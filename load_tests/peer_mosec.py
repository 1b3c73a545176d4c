"""A peer: Mosec serving an ONNX model, raw float32 rows in and out. Runs with the Python of `.venv/peers`.

The model file, the floats in a row, the largest batch and its wait in milliseconds come from the environment.
"""

import os
from typing import Any

import numpy as np
from mosec import Server, Worker


class Rows(Worker):  # type: ignore[misc] # Mosec is not installed where types are checked
    """One execution for what was batched."""

    def __init__(self) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(os.environ["PEER_MODEL"], options, providers=["CPUExecutionProvider"])
        self._width = int(os.environ["PEER_WIDTH"])

    def deserialize(self, data: bytes) -> Any:
        """A request."""
        return np.frombuffer(data, np.float32)

    def serialize(self, data: Any) -> bytes:
        """An answer."""
        row: bytes = data.tobytes()
        return row

    def forward(self, data: Any) -> Any:
        """A batch."""
        return list(self._session.run(None, {"x": np.stack(data)})[0])


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Rows, num=1, max_batch_size=int(os.environ["PEER_BATCH"]), max_wait_time=int(os.environ["PEER_WAIT_MS"])
    )
    server.run()
