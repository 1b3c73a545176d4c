"""One dispatch on the device: assemble, run, scatter."""

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from app.backends.base import LoadedModel
from app.domain.batch_safety import Padding
from app.domain.errors import ExecutionFailed, OutOfMemory, ServingError
from app.domain.model import ModelSpec
from app.runtime import batch
from app.runtime.pending import DispatchFacts, Part, PendingRequest
from app.runtime.sparing import Sparing
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Dispatch

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """How one dispatch went: its `parts`, one a request, or its `error`.

    `seconds` is the compute time, without load and assembly; of a failure, all that it took. `begun_at` and
    `ended_at` are the monotonic instants between which the device was busy with it.
    """

    parts: list[Part] | None
    seconds: float
    error: ServingError | None
    begun_at: float
    ended_at: float
    load_seconds: float = 0.0
    """What the weight load took that its first request waited for."""

    @property
    def may_be_one_requests_fault(self) -> bool:
        """Whether running the requests apart could serve some: not after a timeout, or when memory or device failed."""
        return isinstance(self.error, ExecutionFailed) and self.error.code == ExecutionFailed.reason


class Executes(Protocol):
    """What carries a dispatch out: `Executor`."""

    def execute(self, dispatch: Dispatch[PendingRequest]) -> Outcome:
        """Run one dispatch."""

    def terminate(self) -> None:
        """Ask the running execution to end; any thread; sets a flag and returns."""


class Executor:
    """Carries dispatches out, on the dispatcher thread."""

    def __init__(self, weights: WeightCache, clock: Callable[[], float]) -> None:
        self._weights = weights
        self._clock = clock
        self._specs: dict[str, tuple[ModelSpec, Padding]] = {}
        self._running: LoadedModel | None = None
        self._begun = 0.0
        self._sparing = Sparing()
        self._lost: set[str] = set()  # models that left the device to come back, and did not
        self.rebuild: Callable[[str], None] | None = None
        """Makes room on the device and a model's sessions anew, after a run that found no memory."""

    def add_model(self, model_id: str, spec: ModelSpec, padding: Padding | None) -> None:
        """Know the tensors of a model, and its padding where it is not that of `spec` (dispatcher thread)."""
        self._specs[model_id] = (spec, padding or spec.padding)

    def remove_model(self, model_id: str) -> None:
        """Forget a model (dispatcher thread)."""
        self._specs.pop(model_id, None)
        self._lost.discard(model_id)

    def execute(self, dispatch: Dispatch[PendingRequest]) -> Outcome:
        """Run one dispatch. Raises nothing that a batch can cause."""
        self._begun = self._clock()
        try:
            return self._run_with_room(dispatch)
        except ExecutionFailed as failure:
            # What the backend says is for the operator: it may hold names and values that are no caller's business.
            self._tell(dispatch.model_id, failure.code, failure.message)
            error: ServingError = ExecutionFailed("the execution failed", reason=failure.code)
        except ServingError as failure:
            error = failure
        except MemoryError as failure:
            self._tell(dispatch.model_id, OutOfMemory.reason, failure)
            error = OutOfMemory("no memory for this batch")
        except Exception as failure:  # a bad batch fails its requests, never the thread
            self._tell(dispatch.model_id, type(failure).__name__, failure)
            error = ExecutionFailed("the execution failed")
        ended = self._clock()
        return Outcome(None, ended - self._begun, error, self._begun, ended)

    def terminate(self) -> None:
        """Ask the running execution to end (any thread); harmless when none runs."""
        running = self._running
        if running is not None:
            running.terminate()

    def _tell(self, model_id: str, code: str, failure: str | Exception) -> None:
        """Log a failed execution; of those of one model with one code, one a second."""
        suppressed = self._sparing.suppressed((model_id, code), self._clock())
        if suppressed is not None:
            logger.log(
                logging.INFO if code == "terminated" else logging.ERROR,  # it was asked to: nobody waited any more
                "execution of model %s failed: %s",
                model_id,
                failure if isinstance(failure, str) else type(failure).__name__,
                exc_info=None if isinstance(failure, str) else failure,
                extra={"facts": {"code": code} | ({"suppressed": suppressed} if suppressed else {})},
            )

    def _run_with_room(self, dispatch: Dispatch[PendingRequest]) -> Outcome:
        """Run; where there is no memory make room, and try once more."""
        model_id, rebuild = dispatch.model_id, self.rebuild
        if rebuild is None:
            return self._run(dispatch)
        if model_id not in self._lost or self._weights.is_resident(model_id):
            try:
                return self._run(dispatch)
            except (OutOfMemory, MemoryError):
                logger.warning("no memory to run model %s: others leave, and it is tried again", model_id)
        self._lost.add(model_id)
        rebuild(model_id)
        self._lost.discard(model_id)
        self._begun = self._clock()  # what it took to make room is no time of the model's
        return self._run(dispatch)

    def _run(self, dispatch: Dispatch[PendingRequest]) -> Outcome:
        requests, clock = dispatch.requests, self._clock
        started = clock()
        model = self._weights.acquire(dispatch.model_id, started)
        spec, padding = self._specs[dispatch.model_id]
        inputs = batch.assemble(
            [request.inputs for request in requests], spec.inputs, dispatch.rows, dispatch.size, padding
        )
        begun = clock()
        self._running = model
        try:
            outputs = model.run(dispatch.variant, dispatch.size, inputs)
        finally:
            self._running = None
        ended = clock()
        seconds = ended - begun
        shares = batch.scatter(
            outputs, spec.outputs, [request.rows for request in requests], dispatch.size, batched=spec.coalescible
        )
        waited = self._weights.used(dispatch.model_id, requests[0].enqueued_at, ended)
        facts = DispatchFacts(started, waited, seconds, dispatch.rows, dispatch.size)
        return Outcome([Part(share, facts) for share in shares], seconds, None, begun, ended, waited)
