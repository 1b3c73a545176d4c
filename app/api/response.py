"""What of a result goes into its answer, and whether that is quick to write."""

from app.api.codec.request import Decoded
from app.domain.tensors import Tensors
from app.engine.request import InferResult

#: Bodies and answers up to this many bytes are decoded and encoded on the event loop: a hop costs more.
IN_PLACE_BYTES = 65_536


def is_small(outputs: Tensors) -> bool:
    """Whether the outputs are quick to encode; of BYTES the array only holds pointers, so few count as quick."""
    size = 0
    for array in outputs.values():
        size += array.size * 1024 if array.dtype.hasobject else array.nbytes
    return size <= IN_PLACE_BYTES


def answer_parameters(decoded: Decoded, result: InferResult, diverted_from: str | None) -> dict[str, str | int] | None:
    """The parameters of an answer, which most have not; `diverted_from` is the model asked where another answered."""
    if not decoded.parameters and diverted_from is None:
        return None
    parameters: dict[str, str | int] = {}
    if decoded.parameters.get("explain") is True:
        parameters |= {"batch_rows": result.batch_rows, "batch_size": result.batch_size}
    if diverted_from is not None:
        parameters["fallback_from"] = diverted_from
    return parameters
