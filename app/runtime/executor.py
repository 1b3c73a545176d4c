"""One dispatch on the device: make resident, assemble, run, scatter, answer."""

import logging
from collections.abc import Callable

from app.domain.errors import ExecutionFailed, ServingError
from app.domain.model import ModelSpec
from app.runtime import batch
from app.runtime.pending import DispatchFacts, Part, PendingRequest, deliver, fail
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Dispatch

logger = logging.getLogger(__name__)


class Executor:
    """Carries dispatches out on the dispatcher thread. Whatever happens, each request is answered exactly once."""

    def __init__(self, weights: WeightCache, clock: Callable[[], float]) -> None:
        self._weights = weights
        self._clock = clock
        self._specs: dict[str, tuple[ModelSpec, batch.Padding]] = {}

    def add_model(self, model_id: str, spec: ModelSpec, padding: batch.Padding) -> None:
        """Know the tensors of a model (dispatcher thread)."""
        self._specs[model_id] = (spec, padding)

    def remove_model(self, model_id: str) -> None:
        """Forget a model (dispatcher thread)."""
        self._specs.pop(model_id, None)

    def execute(self, dispatch: Dispatch[PendingRequest]) -> float | None:
        """Run one dispatch; the compute seconds, without load and assembly, or None when the run failed."""
        requests = dispatch.requests
        try:
            parts, seconds = self._run(dispatch)
        except ServingError as error:
            fail(requests, error)
            return None
        except Exception:
            logger.exception("execution of model %s failed", dispatch.model_id)
            fail(requests, ExecutionFailed("the execution failed"))
            return None
        deliver(requests, parts)
        return seconds

    def _run(self, dispatch: Dispatch[PendingRequest]) -> tuple[list[Part], float]:
        requests, clock = dispatch.requests, self._clock
        started = clock()
        model = self._weights.acquire(dispatch.model_id)
        spec, padding = self._specs[dispatch.model_id]
        loaded = clock()
        inputs = batch.assemble(
            [request.inputs for request in requests], spec.inputs, dispatch.rows, dispatch.size, padding
        )
        begun = clock()
        outputs = model.run(dispatch.variant, dispatch.size, inputs)
        seconds = clock() - begun
        shares = batch.scatter(
            outputs, spec.outputs, [request.rows for request in requests], dispatch.size, batched=spec.coalescible
        )
        facts = DispatchFacts(started, loaded - started, seconds, dispatch.rows, dispatch.size)
        return [Part(share, facts) for share in shares], seconds
