"""What goes into the engine and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from app.domain.tensors import Tensors
from app.engine.expiry import Watch, unwatched
from app.runtime.accounts import TIMES
from app.runtime.registry import Generation


class Timings:
    """Seconds that one request spent in each stage; what it did not have stays on the class, which costs it nothing."""

    decode = 0.0
    preprocess = 0.0
    queue = 0.0
    load = 0.0
    compute = 0.0
    postprocess = 0.0
    encode = 0.0

    def pack(self, received_at: float, timeout: float, seconds: float) -> bytes:
        """The `TIMES` of an answered request: by name, as the tuple of `stages` would cost each."""
        return TIMES.pack(
            received_at, timeout, seconds,
            self.decode, self.preprocess, self.queue, self.load, self.compute, self.postprocess, self.encode,
        )  # fmt: skip

    @property
    def stages(self) -> tuple[float, ...]:
        """In the order of `accounts.STAGES`."""
        return (
            self.decode, self.preprocess, self.queue, self.load, self.compute, self.postprocess, self.encode
        )  # fmt: skip


@dataclass(slots=True, init=False)
class InferRequest:
    """One client request, decoded; `inputs` are valid against the generation's `client_inputs`.

    Nobody changes one, nor an `InferResult`; but a frozen dataclass takes five times as long to make, once per request.
    `decoded_at` and `deadline` are monotonic seconds; `watch` fails what the request awaits at its deadline. `timings`
    is filled in as the request goes on, so that who passes it knows them of a failed one too.
    """

    generation: Generation
    inputs: Tensors
    decoded_at: float
    parameters: Mapping[str, Any]
    deadline: float
    watch: Watch
    timings: Timings

    def __init__(  # by hand, as for all that is made for each request: a generated one is not compiled
        self,
        generation: Generation,
        inputs: Tensors,
        decoded_at: float,
        parameters: Mapping[str, Any] | None = None,
        deadline: float = inf,
        watch: Watch = unwatched,
        timings: Timings | None = None,
    ) -> None:
        self.generation = generation
        self.inputs = inputs
        self.decoded_at = decoded_at
        self.parameters = {} if parameters is None else parameters
        self.deadline = deadline
        self.watch = watch
        self.timings = Timings() if timings is None else timings


@dataclass(slots=True, init=False)
class InferResult:
    """One answer. `outputs` are client-facing tensors; `batch_rows` and `batch_size` describe the (last) dispatch.

    `executed_at` is the monotonic instant at which the last execution had ended.
    """

    generation: Generation
    outputs: Tensors
    timings: Timings
    batch_rows: int
    batch_size: int
    executed_at: float

    def __init__(
        self,
        generation: Generation,
        outputs: Tensors,
        timings: Timings,
        batch_rows: int,
        batch_size: int,
        executed_at: float,
    ) -> None:
        self.generation = generation
        self.outputs = outputs
        self.timings = timings
        self.batch_rows = batch_rows
        self.batch_size = batch_size
        self.executed_at = executed_at
