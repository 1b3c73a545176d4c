"""The life of one request, from top to bottom: preprocess, cut, queue, wait, join, postprocess."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from typing import ParamSpec, TypeVar

from app.domain.config import ModelPolicy, Residency, SchedulerConfig
from app.domain.errors import (
    DeadlineInfeasible,
    ModelUnavailable,
    QueueFull,
    ServingError,
    ShuttingDown,
)
from app.engine.digests import PolicyDigests
from app.engine.hook_calls import postprocess, preprocess
from app.engine.leases import Leases
from app.engine.meta import MetaRunner
from app.engine.pieces import Cutter
from app.engine.request import InferRequest, InferResult, Timings
from app.engine.watchdog import Watchdog
from app.repository.hooks import HookContext
from app.runtime import batch
from app.runtime.control import Control
from app.runtime.dispatcher import Dispatcher
from app.runtime.fallbacks import can_stand_in, fallback_of
from app.runtime.hook_pool import HookPool
from app.runtime.pending import DispatchFacts, Part, PendingRequest
from app.runtime.registry import Generation, ModelRegistry
from app.runtime.residency import Compaction
from app.runtime.tuning import Tuning
from app.runtime.watcher import RepositoryWatcher

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

#: The refusals that a fallback model may spare the client.
ESCAPES = (QueueFull, DeadlineInfeasible)

#: Answers whose times are learned together.
REPLIES = 16


class Engine:
    """Serves requests and carries admin changes. Event loop only, unless said otherwise."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        control: Control,
        tuning: Tuning,
        registry: ModelRegistry,
        watcher: RepositoryWatcher,
        hooks: HookPool,
        metas: HookPool,
        clock: Callable[[], float],
        config: SchedulerConfig,
    ) -> None:
        self.clock = clock
        self.registry = registry
        self.digests = PolicyDigests(config)
        self.leases = Leases(control.free)
        self.watchdog = Watchdog(dispatcher, config.dispatch_timeout_seconds)
        self._dispatcher = dispatcher
        self._control = control
        self._tuning = tuning
        self._watcher = watcher
        self._hooks = hooks
        self._metas = metas
        self._max_pieces = config.max_queue_depth
        self._cutter = Cutter(config.max_queue_depth, count(1))
        self._meta_runner = MetaRunner(dispatcher, registry, self.leases, self._cutter, metas, hooks, clock)
        self._replies: list[tuple[str, float]] = []
        self._refusing = False
        self._waking = False

    # the data plane

    def resolve(self, name: str, version: str | None) -> Generation:
        """The generation that serves a name now. Raises `ShuttingDown`, `ModelNotFound` or `ModelUnavailable`."""
        if self._refusing:
            raise ShuttingDown("the server is shutting down")
        if version is None and (serving := self.registry.serving.get(name)) is not None:
            return serving
        generation = self.registry.resolve_public(name, version)
        if not generation.resident:
            raise ModelUnavailable(f"the weights of model {name!r} are not on the device", reason="not_resident")
        return generation

    def check_serves(self, name: str, version: str | None) -> None:
        """Raise what a request for the model would be refused with now."""
        self._meta_runner.models_of(self.resolve(name, version))

    def begin(self, generation: Generation, deadline: float, received_at: float) -> Generation:
        """A request begins on a generation that was just resolved; pair it with `end`.

        Returns the generation that takes it: this one, or its fallback when its queue is full or the deadline cannot
        be met. Raises `QueueFull` or `DeadlineInfeasible`, the request then being booked and ended.
        """
        self.leases.take(generation)
        generation.account.accepted += 1
        if deadline == inf and generation.holders.count <= self._max_pieces:
            return generation  # no reason to look: each look takes the lock
        try:
            self._check(generation, deadline)
        except ServingError as refusal:
            other = self.divert(generation, deadline) if isinstance(refusal, ESCAPES) else None
            if other is None:
                self.end(generation, refusal.code, self.clock() - received_at)
                raise
            return other
        return generation

    def divert(self, generation: Generation, deadline: float) -> Generation | None:
        """Let the fallback take over a request that began; the fallback, or None where there is none that can."""
        name = fallback_of(generation)
        entry = self.registry.entries.get(name) if name is not None else None
        other = entry.generation if entry is not None else None
        if other is None or not other.resident or fallback_of(other):
            return None
        if not can_stand_in(generation.bundle.spec, other.bundle.spec):
            return None
        try:
            self._check(other, deadline)
        except ServingError:
            return None
        self.leases.take(other)
        other.account.accepted += 1
        self.leases.give_back(generation)
        generation.account.accepted -= 1
        generation.account.diverted += 1
        return other

    def end(self, generation: Generation, code: str | None, seconds: float, times: bytes | None = None) -> None:
        """The request that began ended with an error of that `code`, None for an answer; as `Account.close`."""
        generation.account.close(code, seconds, times)
        self.leases.give_back(generation)

    async def infer(self, request: InferRequest) -> InferResult:
        """Answer one request. Raises a `ServingError`; a cancelled call withdraws what is queued."""
        generation, inputs, deadline, watch = request.generation, request.inputs, request.deadline, request.watch
        now, timings = request.decoded_at, request.timings
        spec, hooks = generation.bundle.spec, generation.bundle.hooks
        if spec.is_meta:
            return await self._meta_runner.infer(request)
        plain = hooks.preprocess is None and hooks.postprocess is None
        context = None if plain else HookContext(spec.name, request.parameters, deadline)
        if context is not None and hooks.preprocess is not None:
            inputs = await watch(self._hooks.run(preprocess, hooks.preprocess, inputs, context, spec))
            now, begun = self.clock(), now
            timings.preprocess = now - begun
        new_future = asyncio.get_running_loop().create_future
        pieces = self._cutter.cut(generation, request.inputs, inputs, now, new_future, deadline)
        self._dispatcher.submit(pieces, now, wake=False)
        if not self._waking:
            self._wake_soon()
        try:
            if len(pieces) == 1:  # which is most, and needs no future around it
                parts = [await watch(_of_loop(pieces[0]))]
            else:
                parts = await watch(asyncio.gather(*map(_of_loop, pieces)))
        except BaseException:
            self._forsake(pieces)
            raise
        outputs = parts[0].outputs
        if len(parts) > 1:
            outputs = await watch(self._hooks.run(batch.join, [part.outputs for part in parts], spec.outputs))
        facts = _account_for(parts, now, timings)
        if context is not None and hooks.postprocess is not None:
            begun = self.clock()
            outputs = await watch(self._hooks.run(postprocess, hooks.postprocess, outputs, context, spec))
            timings.postprocess = self.clock() - begun
        return InferResult(generation, outputs, timings, facts.rows, facts.size, facts.ended_at)

    def learn_reply(self, generation: Generation, seconds: float) -> None:
        """Learn the reserve from one answer: what followed its execution. In groups, for a lock less often."""
        self._replies.append((generation.model_id, seconds))
        if len(self._replies) >= REPLIES:
            self._dispatcher.learn_replies(self._replies)
            self._replies.clear()

    def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a large decode or encode in the hook pool."""
        return self._hooks.run(fn, *args, **kwargs)

    def _check(self, generation: Generation, deadline: float) -> None:
        """Refuse what the queue would refuse, where there is reason to look."""
        if generation.bundle.spec.is_meta:
            return  # its sub-calls are queued, and refused, as any other request
        if deadline < inf or generation.holders.count > self._max_pieces:
            self._dispatcher.admit(generation.model_id, deadline, self.clock())

    def _wake_soon(self) -> None:
        """Wake the dispatcher once for all that arrives in this turn of the loop and the next, which polls once more.

        They share a wake-up and a batch. The second turn took 15 % off the cost of a request at 32 connections.
        """
        self._waking = True
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._wake)

    def _forsake(self, pieces: list[PendingRequest]) -> None:
        """One of the pieces failed, or the caller has gone: withdraw the others."""
        withdrawn = self._dispatcher.withdraw(pieces)
        for future in map(_of_loop, pieces):
            if not future.cancel() and not future.cancelled():
                future.exception()  # retrieved: one failed piece fails the request once
        if len(withdrawn) < len(pieces):
            self._dispatcher.end_forsaken()

    def _wake(self) -> None:
        self._waking = False
        self._dispatcher.wake()

    # the control plane

    async def set_policy(self, name: str, change: Callable[[ModelPolicy], ModelPolicy]) -> ModelPolicy:
        """Change a model's policy before the next dispatch; the new one. Raises `ModelNotFound`, or what `change` does.

        `change` makes the new policy of the one in force; it runs on the dispatcher thread.
        """
        return await asyncio.wrap_future(self._tuning.set_policy(name, change))

    async def set_residency(self, name: str, residency: Residency) -> None:
        """Move a model's weights now. Raises `Unsupported` where the server moves them, `ModelNotFound`, or why not."""
        await asyncio.wrap_future(self._tuning.set_residency(name, residency))

    async def compact(self, reload: Sequence[str]) -> Compaction:
        """Free unpinned weights and load the listed models again. Raises `ModelNotFound`, or why a load failed."""
        return await asyncio.wrap_future(self._tuning.compact(reload))

    async def prefetch(self, names: Sequence[str]) -> None:
        """Bring the weights of these models now. Raises `ModelNotFound`, `Unsupported`, or why a load failed."""
        await asyncio.wrap_future(self._tuning.prefetch(names))

    async def load_model(self, name: str) -> None:
        """Load or reload a model from its directory. Raises `ModelNotFound` or `BundleError`."""
        path = await asyncio.to_thread(self._watcher.find, name)  # not among the hooks: those may hang
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
        self._metas.give_up(error)

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


def _of_loop(piece: PendingRequest) -> asyncio.Future[Part]:
    future = piece.future
    assert isinstance(future, asyncio.Future)
    return future


def _account_for(parts: list[Part], enqueued_at: float, timings: Timings) -> DispatchFacts:
    """Fill in queue, load and compute seconds, each dispatch counted once; the facts of the last dispatch."""
    facts = parts[-1].facts
    if len(parts) == 1:
        timings.queue, timings.compute = facts.started_at - enqueued_at, facts.compute_seconds
        if facts.load_seconds:
            timings.load = min(facts.load_seconds, timings.queue)
            timings.queue -= timings.load
    else:
        dispatches = {id(part.facts): part.facts for part in parts}.values()
        timings.load = sum([each.load_seconds for each in dispatches], 0.0)
        timings.compute = sum([each.compute_seconds for each in dispatches], 0.0)
        timings.queue = max(facts.ended_at - enqueued_at - timings.load - timings.compute, 0.0)
    return facts
