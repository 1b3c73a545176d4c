"""Brings weights to the device in the background and takes others off it, as the plans say.

Decisions are made on the dispatcher thread; sessions are made on a thread of its own, `weights_0`.
"""

import concurrent.futures
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple, TypeVar

from app.backends.base import Backend, CacheEntry, Prepared
from app.domain.errors import (
    BundleError,
    ExecutionFailed,
    ModelNotFound,
    ModelUnavailable,
    OutOfMemory,
    ServingError,
    ShuttingDown,
)
from app.domain.model import ModelSpec
from app.runtime.dispatcher import Dispatcher
from app.runtime.pending import PendingRequest, fail
from app.runtime.weights import WeightCache
from app.scheduling.queues import Weights
from app.scheduling.residency import plan_load, plan_room
from app.scheduling.scheduler import Scheduler

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Compaction(NamedTuple):
    """Bytes of weights on the device before and after."""

    before_bytes: int
    after_bytes: int


class ResidencyKeeper:
    """Keeps the weights of the models that have work on the device. Dispatcher thread, unless said otherwise.

    `compact_every` compacts after so many loads on demand; 0 for never. `external` says that operators move weights.
    """

    def __init__(
        self,
        backend: Backend,
        weights: WeightCache,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
        compact_every: int = 0,
        *,
        external: bool = False,
    ) -> None:
        self._backend = backend
        self._weights = weights
        self._dispatcher = dispatcher
        self._clock = clock
        self._compact_every = compact_every
        self._external = external
        self._loads = 0
        self._remaking: set[str] = set()
        self.remake: Callable[[str], concurrent.futures.Future[None]] | None = None
        """Loads a model anew whose compile-cache entry is gone (weights thread); set before it is needed."""
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="weights")

    # on demand

    def tend(self, wanted: Sequence[str], queued: Collection[str], now: float) -> float:
        """Start the load of the first of `wanted`, if its time has come; the instant at which to look again.

        `queued` are the models with queued work. The device is free: nothing runs. One load at a time: each takes a
        core from serving.
        """
        weights = self._weights
        if self._dispatcher.loading or not weights.knows(model_id := wanted[0]) or weights.is_reserved(model_id):
            return inf
        needed, on_demand = weights.needed_bytes(model_id), weights.budget.on_demand
        plan = plan_load(needed, weights.evictable(queued), on_demand, now, taken=weights.taken_bytes)
        if plan.victims is None:
            return plan.look_again_at
        if needed > on_demand:
            logger.warning(
                "model %s is loaded alone: its weights have %d bytes, models on demand may fill %d",
                model_id,
                needed,
                on_demand,
            )
        self._evict(plan.victims)
        self._start(model_id)
        return inf

    def _start(self, model_id: str) -> None:
        entry, spec = self._weights.source(model_id)
        self._dispatcher.loading = True
        self._weights.reserve(model_id)
        self._tell([model_id], "loading")
        with suppress(RuntimeError):  # the server ends
            self._executor.submit(self._fetch, model_id, entry, spec)

    def _fetch(self, model_id: str, entry: CacheEntry, spec: ModelSpec) -> None:
        """On the weights thread."""
        begun = self._clock()
        try:
            prepared = self._backend.prepare(entry, spec)
        except Exception as error:
            failure = error
            self._dispatcher.post(lambda: self._failed(model_id, failure))
        else:
            seconds = self._clock() - begun
            self._dispatcher.post(lambda: self._arrived(model_id, prepared, seconds))

    def _arrived(self, model_id: str, prepared: Prepared, seconds: float) -> None:
        self._dispatcher.loading = False
        if not self._weights.knows(model_id) or self._weights.is_resident(model_id):
            prepared.load().unload()  # it was unloaded meanwhile, or an operator was faster
            self._weights.release(model_id)
            return
        try:
            self.load_now(model_id, prepared, seconds, on_demand=True)
        except Exception as error:
            self._failed(model_id, error)
            return
        self._weights.release(model_id)
        self._loads += 1
        if self._compact_every and self._loads % self._compact_every == 0:
            self._free(staying=model_id)

    def _failed(self, model_id: str, error: Exception) -> None:
        """What is queued fails with the reason; the next request tries again."""
        self._dispatcher.loading = False
        self._weights.release(model_id)
        if isinstance(error, ShuttingDown):
            return
        told = self._told(model_id, error)
        with self._dispatcher.locked() as scheduler:
            orphans = scheduler.drain(model_id)
        self._tell([model_id], "cold")
        fail(orphans, told)

    def _told(self, model_id: str, error: Exception) -> ServingError:
        """What callers are told of a load that failed. Where the fault is the entry's, it is made anew."""
        known = isinstance(error, ServingError)
        logger.error("the weights of model %s could not be loaded: %s", model_id, error, exc_info=not known)
        if isinstance(error, OutOfMemory | MemoryError):
            return OutOfMemory("no memory for the weights of the model")
        if isinstance(error, BundleError) and self.remake is not None:
            self._make_anew(model_id, self.remake)
            return ModelUnavailable("the model has to be compiled anew", reason="load_failed")
        return ExecutionFailed("the weights of the model could not be loaded", reason="load_failed")

    def _make_anew(self, model_id: str, remake: Callable[[str], concurrent.futures.Future[None]]) -> None:
        """Load the bundle again, which compiles it; what comes of it is told by the model's state."""

        def begin() -> None:
            try:
                remake(model_id).add_done_callback(lambda _: self._dispatcher.post(end))
            except ServingError as error:
                logger.error("model %s cannot be compiled anew: %s", model_id, error)
                self._dispatcher.post(end)

        def end() -> None:
            self._remaking.discard(model_id)

        if model_id not in self._remaking:
            self._remaking.add(model_id)
            self.submit(begin)

    # for operators

    def make_room(self, model_id: str, *, forced: bool) -> None:
        """Keep room for a model that an operator loads, until it is in service; with `forced` others leave for it.

        Raises `OutOfMemory`, naming the bytes, when it does not fit, and `ModelNotFound`.
        """
        weights = self._weights
        needed, on_demand = weights.weight_bytes(model_id), weights.budget.on_demand
        if weights.comes_and_goes and forced:
            with self._dispatcher.locked() as scheduler:
                queued = scheduler.busy()
            room = on_demand - weights.taken_bytes
            self._evict(plan_room(weights.needed_bytes(model_id), weights.evictable(queued), room))
        elif weights.comes_and_goes and needed > (free := weights.free_bytes(model_id)):
            remedy = f"of the {weights.budget.pool} that weights may fill {free} are free: take another model off first"
            if needed > weights.budget.pool:
                remedy = f"all weights together may fill {weights.budget.pool}: set RUNTIME_DEVICE_MEMORY_BYTES higher"
            raise OutOfMemory(f"the weights have {needed} bytes, and {remedy}")
        weights.reserve(model_id)

    def load_now(self, model_id: str, prepared: Prepared, seconds: float, *, on_demand: bool = False) -> None:
        """Take over a model whose sessions took so many seconds. Raises `ModelNotFound`."""
        now = self._clock()
        self._weights.put(model_id, prepared, seconds, now, on_demand=on_demand)
        with self._dispatcher.locked() as scheduler, suppress(ModelNotFound):
            scheduler.set_weights(model_id, "resident")
            scheduler.record_load(model_id, seconds, now)

    def enter(self, model_id: str, scheduler: Scheduler[PendingRequest]) -> None:
        """Tell the scheduler, under the lock, where the weights of a model are that goes into service."""
        scheduler.set_weights(model_id, "resident" if self._weights.is_resident(model_id) else "cold")
        if seconds := self._weights.load_seconds(model_id):
            scheduler.record_load(model_id, seconds, self._clock())
        self._weights.release(model_id)

    def take_off(self, model_ids: Iterable[str]) -> None:
        """Free the weights on the device."""
        self._evict(model_ids)

    def compact(self) -> Compaction:
        """Free every model that is not pinned, and shrink the arenas. Without a budget nothing moves."""
        before = self._weights.snapshot().resident_bytes
        if self._weights.comes_and_goes:
            self._free()
        after = self._weights.snapshot().resident_bytes
        logger.info("compacted: %d of %d bytes of weights on the device freed", before - after, before)
        return Compaction(before, after)

    def rebuild(self, model_id: str) -> None:
        """After a run that found no memory: free what may leave, and make the model's sessions anew.

        Where operators move the weights, nobody else leaves. Raises `ServingError` when that fails: then the model is
        on the device no more.
        """
        entry, spec = self._weights.source(model_id)
        if self._weights.comes_and_goes and not self._external:
            self._evict([each.model_id for each in self._weights.evictable(()) if each.model_id != model_id])
        self._weights.evict(model_id)
        self._weights.shrink(compaction=False)
        begun = self._clock()
        try:
            prepared = self._backend.prepare(entry, spec)
        except Exception as error:
            self._tell([model_id], "cold")
            raise self._told(model_id, error) from error
        self.load_now(model_id, prepared, self._clock() - begun)

    # any thread

    def bring(self, model_id: str, *, forced: bool = False) -> None:
        """Bring a model to the device, if it is not there; others leave for it only with `forced` (weights thread)."""

        def begin() -> tuple[CacheEntry, ModelSpec] | None:
            if self._weights.is_resident(model_id):
                return None
            self.make_room(model_id, forced=forced)
            return self._weights.source(model_id)

        source = self._dispatcher.call(begin).result()
        if source is None:
            return
        begun = self._clock()
        try:
            prepared = self._backend.prepare(*source)
            seconds = self._clock() - begun
            self._dispatcher.call(lambda: self._brought(model_id, prepared, seconds)).result()
        finally:
            self._dispatcher.post(lambda: self._weights.release(model_id))

    def _brought(self, model_id: str, prepared: Prepared, seconds: float) -> None:
        if self._weights.is_resident(model_id):
            prepared.load().unload()
        else:
            self.load_now(model_id, prepared, seconds)

    def submit(self, job: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Run a job on the weights thread. The future raises `ShuttingDown` once the server ends."""
        try:
            return self._executor.submit(job)
        except RuntimeError:
            refused: concurrent.futures.Future[T] = concurrent.futures.Future()
            refused.set_exception(ShuttingDown("the server is shutting down"))
            return refused

    def stop(self) -> None:
        """Let the load under way end, and join the thread."""
        self._executor.shutdown(wait=True)

    # inside

    def _free(self, staying: str | None = None) -> None:
        self._evict([each.model_id for each in self._weights.evictable(()) if each.model_id != staying])
        self._weights.shrink()

    def _evict(self, victims: Iterable[str]) -> None:
        victims = tuple(victims)
        self._tell(victims, "cold")
        for model_id in victims:
            self._weights.evict(model_id)

    def _tell(self, model_ids: Collection[str], weights: Weights) -> None:
        if model_ids:
            with self._dispatcher.locked() as scheduler:
                for model_id in model_ids:
                    with suppress(ModelNotFound):  # it is not in service yet, or not any more
                        scheduler.set_weights(model_id, weights)
