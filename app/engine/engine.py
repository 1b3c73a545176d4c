"""The life of one request, from top to bottom: preprocess, cut, queue, wait, join, postprocess."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import ParamSpec, TypeVar, cast

import numpy as np

from app.domain.config import ModelPolicy, SchedulerConfig
from app.domain.errors import HookFailed, InvalidRequest, ServingError, ShuttingDown
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors, TensorSpec
from app.engine.expiry import Watch
from app.engine.leases import Leases
from app.engine.request import InferRequest, InferResult, Timings
from app.engine.watchdog import Watchdog
from app.repository.hooks import Hook, HookContext
from app.runtime import batch
from app.runtime.control import Control
from app.runtime.dispatcher import Dispatcher
from app.runtime.hook_pool import HookPool
from app.runtime.pending import DispatchFacts, Part, PendingRequest
from app.runtime.registry import Generation, ModelRegistry
from app.runtime.watcher import RepositoryWatcher
from app.scheduling.coalescing import split_rows

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Engine:
    """Serves requests and carries admin changes. Event loop only, unless said otherwise."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        control: Control,
        registry: ModelRegistry,
        watcher: RepositoryWatcher,
        hooks: HookPool,
        clock: Callable[[], float],
        config: SchedulerConfig,
    ) -> None:
        self.clock = clock
        self.registry = registry
        self.leases = Leases(control.free)
        self.watchdog = Watchdog(dispatcher, config.dispatch_timeout_seconds)
        self._dispatcher = dispatcher
        self._control = control
        self._watcher = watcher
        self._hooks = hooks
        self._tokens = count(1)
        self._max_pieces = config.max_queue_depth
        self._refusing = False
        self._waking = False

    # the data plane

    def resolve(self, name: str, version: str | None) -> Generation:
        """The generation that serves a name now. Raises `ShuttingDown`, `ModelNotFound` or `ModelUnavailable`."""
        if self._refusing:
            raise ShuttingDown("the server is shutting down")
        return self.registry.resolve(name, version)

    def begin(self, generation: Generation) -> None:
        """A request begins on a generation that was just resolved; pair it with `end`."""
        self.leases.take(generation)
        generation.account.accepted += 1

    def end(self, generation: Generation, code: str | None, seconds: float) -> None:
        """The request that began ended with an error of that `code`, None for an answer."""
        generation.account.close(code, seconds)
        self.leases.give_back(generation)

    async def infer(self, request: InferRequest) -> InferResult:
        """Answer one request. Raises a `ServingError`; a cancelled call withdraws what is queued."""
        generation, inputs, now, parameters, deadline, watch = request
        bundle, timings = generation.bundle, Timings()
        spec, hooks = bundle.spec, bundle.hooks
        plain = hooks.preprocess is None and hooks.postprocess is None
        context = None if plain else HookContext(spec.name, parameters, deadline)
        if context is not None and hooks.preprocess is not None:
            inputs = await watch(self._hooks.run(_preprocess, hooks.preprocess, inputs, context, spec))
            now, begun = self.clock(), now
            timings.preprocess = now - begun
        pieces = self._pieces(request, inputs, now)
        parts = await self._execute(pieces, watch)
        outputs = parts[0].outputs
        if len(parts) > 1:
            outputs = await watch(self._hooks.run(batch.join, [part.outputs for part in parts], spec.outputs))
        facts = _account_for(parts, now, timings)
        if context is not None and hooks.postprocess is not None:
            begun = self.clock()
            outputs = await watch(self._hooks.run(_postprocess, hooks.postprocess, outputs, context, spec))
            timings.postprocess = self.clock() - begun
        return InferResult(generation, outputs, timings, facts.rows, facts.size)

    def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a large decode or encode in the hook pool."""
        return self._hooks.run(fn, *args, **kwargs)

    def _pieces(self, request: InferRequest, inputs: Tensors, now: float) -> list[PendingRequest]:
        """The request as it is queued: whole, or cut where it is larger than every compiled size."""
        generation = request.generation
        spec = generation.bundle.spec
        rows = spec.rows_of(inputs)
        key = spec.merge_key(inputs, next(self._tokens))
        largest = spec.largest(key.variant)
        new_future = asyncio.get_running_loop().create_future
        if largest is None or rows <= largest:
            return [PendingRequest(generation.model_id, key, rows, now, request.deadline, inputs, new_future())]
        if not _keeps_rows(request, rows):
            raise InvalidRequest(
                f"model {spec.name!r}: {rows} rows are more than the largest compiled batch size {largest}, and the "
                f"preprocess hook changes the number of rows, so the request cannot be split"
            )
        if rows > largest * self._max_pieces:  # before cutting: a million views take a second to make
            raise InvalidRequest(
                f"model {spec.name!r}: {rows} rows are more than {self._max_pieces} batches of {largest}, which is as "
                f"much as its queue takes",
                reason="too_many_rows",
            )
        cuts = split_rows(rows, largest)
        return [
            PendingRequest(generation.model_id, key, piece, now, request.deadline, part, new_future())
            for piece, part in zip(cuts, batch.cut(inputs, spec.inputs, cuts), strict=True)
        ]

    async def _execute(self, pieces: list[PendingRequest], watch: Watch) -> list[Part]:
        """Queue the pieces and await them all; when one fails, or the caller goes, the others are withdrawn."""
        self._dispatcher.submit(pieces, pieces[0].enqueued_at, wake=False)
        if not self._waking:
            # Once for all that has arrived in this turn of the loop and the next, which polls once more: they share a
            # wake-up and a batch. The second turn took 15 % off the cost of a request at 32 connections.
            self._waking = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._wake)
        futures = [cast("asyncio.Future[Part]", piece.future) for piece in pieces]
        try:
            return [await watch(futures[0])] if len(futures) == 1 else await watch(asyncio.gather(*futures))
        except BaseException:
            withdrawn = self._dispatcher.withdraw(pieces)
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved: one failed piece fails the request once
            if len(withdrawn) < len(pieces):
                self._dispatcher.end_forsaken()
            raise

    def _wake(self) -> None:
        self._waking = False
        self._dispatcher.wake()

    # the control plane

    def policy(self, name: str) -> ModelPolicy:
        """The policy of a model as it is now. Raises `ModelNotFound` or `ModelUnavailable`."""
        return self.registry.resolve(name).policy

    async def set_policy(self, name: str, change: Callable[[ModelPolicy], ModelPolicy]) -> ModelPolicy:
        """Change a model's policy before the next dispatch; the new one. Raises `ModelNotFound`, or what `change` does.

        `change` makes the new policy of the one in force; it runs on the dispatcher thread.
        """
        return await asyncio.wrap_future(self._control.set_policy(name, change))

    async def load_model(self, name: str) -> None:
        """Load or reload a model from its directory. Raises `ModelNotFound` or `BundleError`."""
        path = await self.offload(self._watcher.find, name)
        await asyncio.wrap_future(self._control.load_model(name, path))

    async def unload_model(self, name: str) -> None:
        """Stop serving a model. Raises `ModelNotFound`."""
        await asyncio.wrap_future(self._control.unload_model(name))

    def refuse(self) -> None:
        """Take no new requests; what was admitted goes on."""
        self._refusing = True

    def give_up(self) -> None:
        """Answer everything that is still in flight with `shutdown`."""
        error = ShuttingDown("the server shut down before the answer was ready")
        self._dispatcher.give_up(error)
        self._hooks.give_up(error)

    async def idle(self, seconds: float) -> bool:
        """Wait until no request is in flight, at most so long; whether it came to that."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self.leases.wait_idle()
        except TimeoutError:
            return False
        return True

    @property
    def alive(self) -> bool:
        """False once the dispatcher has died, and while an execution cannot be ended."""
        return self._dispatcher.alive and not self.watchdog.device_lost


def _keeps_rows(request: InferRequest, rows: int) -> bool:
    """Whether the hooks of this very request kept one client row per executable row."""
    bundle = request.generation.bundle
    if bundle.hooks.preprocess is None:
        return True
    axes = [(spec.name, spec.batch_axis) for spec in bundle.spec.client_inputs if spec.batch_axis is not None]
    return bool(axes) and all(request.inputs[name].shape[axis] == rows for name, axis in axes)


def _account_for(parts: list[Part], enqueued_at: float, timings: Timings) -> DispatchFacts:
    """Fill in queue, load and compute seconds, each dispatch counted once; the facts of the last dispatch."""
    facts = parts[-1].facts
    timings.queue = facts.started_at - enqueued_at
    if len(parts) == 1:
        timings.load, timings.compute = facts.load_seconds, facts.compute_seconds
    else:
        dispatches = {id(part.facts): part.facts for part in parts}.values()
        timings.load = sum(each.load_seconds for each in dispatches)
        timings.compute = sum(each.compute_seconds for each in dispatches)
    return facts


def _preprocess(hook: Hook, inputs: Tensors, context: HookContext, spec: ModelSpec) -> Tensors:
    """Run the hook and check that the executable can take what it returned. A `ValueError` is the client's fault."""
    try:
        tensors = _run_hook(hook, _writable(inputs), context, "preprocess")
    except ValueError as error:
        raise InvalidRequest(f"preprocess of model {spec.name!r}: {error}") from error
    return _checked("preprocess", tensors, spec.inputs, spec.name)


def _writable(tensors: Tensors) -> Tensors:
    """Views of the request body are read-only: a hook that works in place gets a copy, whatever the wire form was."""
    return {name: array if array.flags.writeable else array.copy() for name, array in tensors.items()}


def _postprocess(hook: Hook, outputs: Tensors, context: HookContext, spec: ModelSpec) -> Tensors:
    """Run the hook and check that it returned what the manifest promises to clients."""
    try:
        tensors = _run_hook(hook, outputs, context, "postprocess")
    except ValueError as error:
        logger.exception("postprocess of model %s failed", spec.name)
        raise HookFailed(f"postprocess of model {spec.name!r} failed") from error
    return _checked("postprocess", tensors, spec.client_outputs, spec.name)


def _run_hook(hook: Hook, tensors: Tensors, context: HookContext, name: str) -> Tensors:
    try:
        return hook(tensors, context)
    except (ServingError, ValueError):
        raise
    except BaseException as error:  # also SystemExit: a hook ends its own request, never the thread
        logger.exception("%s of model %s failed", name, context.model)
        raise HookFailed(f"{name} of model {context.model!r} failed") from error


def _checked(hook: str, tensors: object, specs: Sequence[TensorSpec], model: str) -> Tensors:
    """The declared tensors of what a hook returned, and no others. Raises `HookFailed` when one is not as declared."""
    if not isinstance(tensors, Mapping):
        raise HookFailed(f"{hook} of model {model!r} returned {type(tensors).__name__}, not a dict of arrays")
    for spec in specs:
        array = tensors.get(spec.name)
        if not isinstance(array, np.ndarray):
            given = "nothing" if array is None else f"a {type(array).__name__}"
        elif array.dtype != spec.dtype or not spec.accepts(array.shape):
            given = f"{array.dtype} {list(array.shape)}"
        else:
            continue
        raise HookFailed(
            f"{hook} of model {model!r} returned {given} for tensor {spec.name!r}; "
            f"the manifest declares {spec.datatype} {list(spec.shape)}"
        )
    return {spec.name: tensors[spec.name] for spec in specs}
