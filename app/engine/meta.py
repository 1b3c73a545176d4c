"""Meta models: Python between models. Each runs on one thread of its own from beginning to end."""

import logging
from collections.abc import Callable, Mapping

from app.domain.errors import Cancelled, HookFailed, InvalidRequest, ModelNotFound, ModelUnavailable, ServingError
from app.domain.tensors import Tensors
from app.engine.hook_calls import aligned, checked, postprocess, preprocess
from app.engine.leases import Leases
from app.engine.pieces import Cutter
from app.engine.request import InferRequest, InferResult
from app.repository.hooks import HookContext
from app.runtime import batch
from app.runtime.dispatcher import Dispatcher
from app.runtime.hook_pool import HookPool
from app.runtime.pending import Part, PendingRequest, threaded_future, wait
from app.runtime.registry import Generation, ModelRegistry

logger = logging.getLogger(__name__)


class MetaRunner:
    """Runs meta models. Event loop only.

    The threads of `metas` are the gate: as many metas are in flight as there are threads, first come first served, and
    one whose deadline passes in line never begins. Those that call no model run among the hooks, in `hooks`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: ModelRegistry,
        leases: Leases,
        cutter: Cutter,
        metas: HookPool,
        hooks: HookPool,
        clock: Callable[[], float],
    ) -> None:
        self._dispatcher = dispatcher
        self._registry = registry
        self._leases = leases
        self._cutter = cutter
        self._metas = metas
        self._hooks = hooks
        self._clock = clock

    async def infer(self, request: InferRequest) -> InferResult:
        """Answer one request to a meta model. Raises a `ServingError`; a cancelled call stops at its next sub-call."""
        models = self.models_of(request.generation)
        for generation in models.values():
            self._leases.take(generation)
        call = MetaCall(request, models, self._dispatcher, self._cutter, self._clock)
        pool = self._metas if models else self._hooks
        try:
            outputs = await request.watch(pool.run(call.run))
        except BaseException:
            call.cancel()
            raise
        finally:
            request.generation.account.compute_seconds += call.compute_seconds
            for generation in models.values():
                self._leases.give_back(generation)
        return InferResult(request.generation, outputs, call.timings, call.rows, call.size, self._clock())

    def models_of(self, generation: Generation) -> dict[str, Generation]:
        """The models that a meta model calls, as they are now; a run stays with them. Raises `ModelUnavailable`."""
        spec, found = generation.bundle.spec, {}
        for name in spec.meta_models or ():
            entry = self._registry.entries.get(name)
            if entry is None or entry.generation is None or not entry.generation.resident:
                raise _not_there(spec.name, name)
            found[name] = entry.generation
        return found


class MetaCall:
    """What a meta model calls its sub-models by: `call(name, inputs) -> outputs`. On the meta's thread, one at a time.

    `deadline` is monotonic seconds, infinite where there is none; `parameters` are those of the request.
    """

    def __init__(
        self,
        request: InferRequest,
        models: Mapping[str, Generation],
        dispatcher: Dispatcher,
        cutter: Cutter,
        clock: Callable[[], float],
    ) -> None:
        self.deadline = request.deadline
        self.parameters = request.parameters
        self.timings = request.timings
        self.compute_seconds = 0.0
        """The meta's part of the device time of its sub-calls, by rows."""
        self.rows = self.size = 0
        self._request = request
        self._name = request.generation.bundle.spec.name
        self._models = models
        self._dispatcher = dispatcher
        self._cutter = cutter
        self._clock = clock
        self._committed = False
        self._cancelled = False
        self._pending: list[PendingRequest] = []

    def run(self) -> Tensors:
        """Run the meta model and check what it returns (its thread). Raises a `ServingError`."""
        bundle = self._request.generation.bundle
        begun = self._clock()
        try:
            self._check_gone()
            assert bundle.hooks.run is not None
            outputs = bundle.hooks.run(aligned(self._request.inputs), self)
        except ServingError:
            raise
        except ValueError as error:  # the client's fault, as in `preprocess`
            raise InvalidRequest(f"run of meta model {self._name!r}: {error}") from error
        except BaseException as error:  # also SystemExit: it ends this request, never the thread
            logger.exception("meta model %s failed", self._name)
            raise HookFailed(f"run of meta model {self._name!r} failed") from error
        finally:
            self._cancelled = True  # a thread that it left behind calls nothing more
        timings = self.timings
        spent = timings.compute + timings.load + timings.queue
        timings.preprocess = max(self._clock() - begun - spent, 0.0)
        timings.queue += begun - self._request.decoded_at
        return checked(f"run of meta model {self._name!r} returned", outputs, bundle.spec.client_outputs)

    def __call__(self, name: str, inputs: Tensors) -> Tensors:
        """Run a declared model on client-facing tensors, by reference; its client-facing outputs.

        Raises `HookFailed` for a model that `calls` does not declare, tensors that are not as it declares them, and
        calls at the same time; `ModelUnavailable` for a model that was unloaded meanwhile; what the model's hooks and
        its execution raise; `Cancelled` when nobody waits any more.
        """
        generation = self._models.get(name)
        if generation is None:
            known = ", ".join(map(repr, self._models)) or "no model"
            raise HookFailed(
                f"meta model {self._name!r} called model {name!r}, which its manifest does not declare: it has {known}"
            )
        if self._pending:
            raise HookFailed(f"meta model {self._name!r} called model {name!r} while another call runs: one at a time")
        spec = generation.bundle.spec
        tensors = checked(f"meta model {self._name!r} called model {name!r} with", inputs, spec.client_inputs)
        try:
            return self._answer(generation, tensors)
        except ModelNotFound as error:  # the meta model, which is what the client asked for, is still there
            raise _not_there(self._name, name) from error

    def cancel(self) -> None:
        """Nobody waits any more: what is queued is withdrawn, and the next call raises (event loop)."""
        self._cancelled = True
        self._withdraw()

    def _answer(self, generation: Generation, tensors: Tensors) -> Tensors:
        spec, hooks = generation.bundle.spec, generation.bundle.hooks
        context = HookContext(spec.name, self.parameters, self.deadline)
        ready = tensors if hooks.preprocess is None else preprocess(hooks.preprocess, tensors, context, spec)
        parts = self._execute(generation, tensors, ready)
        outputs = parts[0].outputs
        if len(parts) > 1:
            outputs = batch.join([part.outputs for part in parts], spec.outputs)
        return outputs if hooks.postprocess is None else postprocess(hooks.postprocess, outputs, context, spec)

    def _execute(self, generation: Generation, client_inputs: Tensors, inputs: Tensors) -> list[Part]:
        now = self._clock()
        pieces = self._cutter.cut(
            generation, client_inputs, inputs, now, threaded_future, self.deadline, self._committed
        )
        # First told, then queued, then looked at again: whoever cancels meanwhile sees the pieces, or is seen.
        self._pending = pieces
        try:
            self._check_gone()
            self._dispatcher.submit(pieces, now)
            self._committed = True
            self._check_gone()
            parts = [wait(piece) for piece in pieces]
        except BaseException:
            self._withdraw()
            raise
        finally:
            self._pending = []
        self._account_for(pieces, parts, now)
        return parts

    def _withdraw(self) -> None:
        pieces = self._pending
        for piece in pieces:
            piece.future.cancel()
        if len(self._dispatcher.withdraw(pieces)) < len(pieces):
            self._dispatcher.end_forsaken()

    def _check_gone(self) -> None:
        if self._cancelled:
            raise Cancelled("nobody waits for the answer any more")

    def _account_for(self, pieces: list[PendingRequest], parts: list[Part], now: float) -> None:
        timings, compute, load = self.timings, 0.0, 0.0
        for facts in {id(part.facts): part.facts for part in parts}.values():
            compute += facts.compute_seconds
            load += facts.load_seconds
            self.rows, self.size = facts.rows, facts.size
        waited = max(parts[-1].facts.ended_at - now - compute, 0.0)
        timings.compute += compute
        timings.load += min(load, waited)
        timings.queue += max(waited - load, 0.0)
        self.compute_seconds += sum(
            [
                part.facts.compute_seconds * piece.rows / part.facts.rows
                for piece, part in zip(pieces, parts, strict=True)
            ]
        )


def _not_there(meta: str, name: str) -> ModelUnavailable:
    return ModelUnavailable(f"meta model {meta!r} calls model {name!r}, which is not there: /status says why")
