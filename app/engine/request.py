"""What goes into the engine and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from app.domain.tensors import Tensors
from app.runtime.registry import Generation


@dataclass(slots=True)
class Timings:
    """Seconds that one request spent in each stage."""

    decode: float = 0.0
    preprocess: float = 0.0
    queue: float = 0.0
    load: float = 0.0
    compute: float = 0.0
    postprocess: float = 0.0
    encode: float = 0.0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One client request, decoded; `inputs` are valid against the generation's `client_inputs`.

    `deadline` is monotonic seconds; `outputs` are the wanted client outputs, None for all.
    """

    generation: Generation
    inputs: Tensors
    parameters: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = inf
    outputs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class InferResult:
    """One answer. `outputs` are client-facing tensors; `batch_rows` and `batch_size` describe the (last) dispatch."""

    generation: Generation
    outputs: Tensors
    timings: Timings
    batch_rows: int = 0
    batch_size: int = 0
    fallback_from: str | None = None
