"""Which models are served: loads, unloads and renames, each carried out on the dispatcher thread."""

import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from app.domain.config import ModelPolicy, Residency
from app.domain.errors import ModelNotFound, ModelUnavailable, ServingError, ShuttingDown
from app.repository.hooks import Hooks
from app.runtime import warmup
from app.runtime.accounts import Account
from app.runtime.calls import check_calls
from app.runtime.dispatcher import Dispatcher
from app.runtime.executor import Executor
from app.runtime.fallbacks import check_fallbacks
from app.runtime.loader import CompiledBundle, Loader
from app.runtime.pending import fail
from app.runtime.registry import NOT_LOADED, UNLOADED, Generation, ModelEntry, ModelRegistry, ModelState
from app.runtime.residency import ResidencyKeeper
from app.runtime.weights import WeightCache

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Control:
    """Loads, unloads and renames models. Every method may be called from any thread and returns a future.

    `policy_of` gives the configured policy of a name; with `stay_resident` the weights of a loaded model are on the
    device until an operator takes them off, and a load that does not fit fails; `on_retired` is told (dispatcher
    thread) of a generation that no new request will find, so that its requests in flight can finish before `free`
    takes it off the device.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        weights: WeightCache,
        keeper: ResidencyKeeper,
        registry: ModelRegistry,
        loader: Loader,
        policy_of: Callable[[str], ModelPolicy],
        clock: Callable[[], float],
        *,
        stay_resident: bool = False,
    ) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._weights = weights
        self._keeper = keeper
        self._stay_resident = stay_resident
        self._registry = registry
        self._loader = loader
        self._policy_of = policy_of
        self._clock = clock
        self._generations = count(1)
        self._wanted: dict[str, int] = {}  # dispatcher thread: which change of a name is the latest
        self.on_retired: Callable[[Generation], None] = self.free

    def load_model(self, name: str, path: Path) -> concurrent.futures.Future[None]:
        """Load the bundle at `path` under `name`, beside a generation that serves now, then swap.

        The future raises what stopped the load; a generation that served goes on serving, with the reason in its
        entry.
        """
        change = next(self._generations)

        def begin() -> None:
            self._wanted[name] = change
            self._mark(name, ModelState.LOADING, "")

        self._dispatcher.call(begin)
        return self._loader.submit(self._load, name, path, change)

    def unload_model(self, name: str) -> concurrent.futures.Future[None]:
        """Stop serving a model: its queued requests fail with `was unloaded`. The future raises `ModelNotFound`."""
        return self._dispatcher.call(lambda: self._unload(name, ModelEntry(name, ModelState.UNAVAILABLE, UNLOADED)))

    def remove_model(self, name: str) -> concurrent.futures.Future[None]:
        """Stop serving a model whose bundle is gone, and forget its name."""
        return self._dispatcher.call(lambda: self._unload(name, None))

    def announce(
        self, known: Iterable[str], starting: Sequence[str], on_announced: Callable[[Iterable[str]], None]
    ) -> None:
        """Enter models that are known and not loaded, and those about to be; `on_announced` is then told the latter."""

        def apply() -> None:
            idle = [ModelEntry(name, ModelState.UNAVAILABLE, NOT_LOADED) for name in known]
            self._registry.replace((), [*idle, *[ModelEntry(name, ModelState.LOADING) for name in starting]])
            on_announced(starting)

        self._dispatcher.call(apply)

    def serves(self, name: str) -> bool:
        """Whether requests for the name are answered, as of the commands that have been carried out."""
        entry = self._registry.entries.get(name)
        return entry is not None and entry.generation is not None

    def rename_models(self, pairs: Sequence[tuple[str, str]]) -> concurrent.futures.Future[None]:
        """Rename (old, new) in place, all at once, so that chains and rings work: queues and counters ride along.

        A generation whose name another one takes is retired, as by a reload.
        """
        return self._dispatcher.call(lambda: self._rename(pairs))

    def free(self, generation: Generation) -> None:
        """Take a retired generation off the device, after the commands already queued (any thread)."""
        self._dispatcher.post(lambda: self._free(generation, generation.bundle.spec.name))

    def waiting(self) -> dict[str, str]:
        """Why meta models that are loaded cannot be served: what they call is not there (any thread)."""
        entries = self._registry.entries
        return {
            name: told.reason
            for name, told in self._registry.told.items()
            if told.state is ModelState.UNAVAILABLE and name in entries and entries[name].state is ModelState.READY
        }

    def stop(self) -> concurrent.futures.Future[None]:
        """Free every model (the last command before the dispatcher stops)."""

        def apply() -> None:
            for entry in self._registry.entries.values():
                if entry.generation is not None:
                    entry.generation.bundle.hooks.close()
            self._weights.drop_all()

        return self._dispatcher.call(apply)

    def _policy_for(self, name: str) -> ModelPolicy:
        """The policy of what serves under a name, so that a reload goes on with it, else the configured one."""
        entry = self._registry.entries.get(name)
        generation = entry.generation if entry is not None else None
        return self._policy_of(name) if generation is None else generation.policy

    # loader thread

    def _load(self, name: str, path: Path, change: int) -> None:
        model_id, hooks = f"{name}@{change}", Hooks()
        try:
            policy = self._policy_for(name)
            loaded = self._loader.compile(path, policy.padding)
            hooks = loaded.bundle.hooks
            costs = self._bring(name, model_id, loaded, policy.residency)
            self._on_dispatcher(lambda: self._commit(name, model_id, change, loaded, costs))
        except Exception as error:
            hooks.close()
            reason = error.message if isinstance(error, ServingError) else f"{type(error).__name__}: {error}"
            if not isinstance(error, ShuttingDown):
                logger.error("model %s: load failed: %s", name, reason, exc_info=not isinstance(error, ServingError))
            self._on_dispatcher(lambda: self._abandon(name, model_id, change, reason))
            raise

    def _bring(self, name: str, model_id: str, loaded: CompiledBundle, floor: Residency | None) -> warmup.Costs:
        """Bring a model to the device as far as it has to be there now; what its executions cost.

        One that was measured before, on this machine, and whose weights may come and go, waits for its first request.
        """
        entry, spec, sample = loaded.entry, loaded.bundle.spec, loaded.bundle.sample
        self._on_dispatcher(lambda: self._weights.add(model_id, entry, spec, self._floor(name, floor)))
        if spec.is_meta:
            return {}
        known = entry.costs if entry.costs.keys() >= set(warmup.shapes(spec)) else None
        if known is not None and self._weights.comes_and_goes and not self._must_stay(floor):
            return known
        self._on_dispatcher(lambda: self._keeper.make_room(model_id, forced=not self._stay_resident))
        begun = self._clock()
        prepared = self._loader.build(loaded)
        seconds = self._clock() - begun
        self._on_dispatcher(lambda: self._keeper.load_now(model_id, prepared, seconds))
        if known is None:
            model = self._on_dispatcher(lambda: self._weights.acquire(model_id, self._clock()))
            known = warmup.warm_up(model, spec, sample, entry.warm, self._between_dispatches, self._clock)
            self._loader.remember(loaded, known, seconds)
        return known

    def _floor(self, name: str, configured: Residency | None) -> Residency | None:
        """Where operators move weights, what they last said of the version that serves goes on (dispatcher thread)."""
        entry = self._registry.entries.get(name)
        old = entry.generation if entry is not None else None
        return configured if old is None or not self._stay_resident else self._weights.floor(old.model_id)

    def _must_stay(self, floor: Residency | None) -> bool:
        return self._stay_resident or floor is Residency.DEVICE

    def _on_dispatcher(self, command: Callable[[], T]) -> T:
        return self._dispatcher.call(command).result()

    def _between_dispatches(self, command: Callable[[], T]) -> T:
        self._loader.check()
        return self._dispatcher.call(command, executes=True).result()

    # dispatcher thread

    def _mark(self, name: str, state: ModelState, reason: str) -> None:
        """Set state and reason; a generation that serves stays READY."""
        entry = self._registry.entries.get(name)
        generation = entry.generation if entry is not None else None
        shown = ModelState.READY if generation is not None else state
        reason = reason.encode(errors="replace").decode()  # it goes into JSON, and may quote a file name
        self._registry.put(ModelEntry(name, shown, reason, generation))

    def _commit(self, name: str, model_id: str, change: int, loaded: CompiledBundle, costs: warmup.Costs) -> None:
        if self._wanted.get(name) != change:
            raise ModelUnavailable(f"the load of model {name!r} was overtaken by a later change")
        spec = loaded.bundle.spec
        entry = self._registry.entries.get(name)
        old = entry.generation if entry is not None else None
        policy = self._policy_for(name)
        generation = Generation(model_id, loaded.bundle, policy, Account() if old is None else old.account)
        check_fallbacks(name, generation, self._registry.entries)
        check_calls(name, spec, self._registry.entries)
        now, reachable = self._clock(), self._registry.serving
        # Registry and scheduler change together, so that whoever reads the one and then the other can tell.
        with self._dispatcher.locked() as scheduler:
            scheduler.add_model(model_id, spec, policy)
            self._keeper.enter(model_id, scheduler)
            for (variant, size), seconds in costs.items():
                scheduler.seed_cost(model_id, variant, size, seconds, now)
            if old is not None:
                scheduler.carry_over(old.model_id, model_id)
            self._executor.add_model(model_id, spec, policy.padding)
            self._registry.put(ModelEntry(name, ModelState.READY, "", generation))
        logger.info("model %s: ready as %s, %d bytes of weights", name, loaded.entry.form, loaded.entry.weight_bytes)
        for hidden in sorted(reachable.keys() - self._registry.public.keys()):
            logger.info("model %s: internal now: %s", hidden, self._registry.why_internal(hidden))
        if old is not None:
            self._weights.carry_over(old.model_id, model_id)
            self.on_retired(old)

    def _abandon(self, name: str, model_id: str, change: int, reason: str) -> None:
        """A load failed: what it had on the device goes; the entry says why, unless a later change owns it."""
        self._weights.drop(model_id)
        if self._wanted.get(name) == change:
            self._mark(name, ModelState.UNAVAILABLE, reason)

    def _rename(self, pairs: Sequence[tuple[str, str]]) -> None:
        entries = self._registry.entries
        moved = [self._renamed(entries[old], new) for old, new in pairs if old in entries]
        for name in {name for pair in pairs for name in pair}:
            self._wanted.pop(name, None)
        taken = {new for _, new in pairs} - {old for old, _ in pairs}
        with self._dispatcher.locked() as scheduler:
            for entry in moved:
                if (generation := entry.generation) is not None:
                    scheduler.rename_model(generation.model_id, entry.name)
                    scheduler.set_policy(generation.model_id, generation.policy)
                    self._executor.add_model(generation.model_id, generation.bundle.spec, generation.policy.padding)
            self._registry.replace([old for old, _ in pairs], moved)
        logger.info("models renamed: %s", ", ".join(f"{old} -> {new}" for old, new in pairs))
        for name in taken & entries.keys():
            displaced = entries[name].generation
            if displaced is not None:
                self.on_retired(displaced)

    def _renamed(self, entry: ModelEntry, name: str) -> ModelEntry:
        """The entry under another name. A policy as configured for the old name becomes that of the new one."""
        generation = entry.generation
        if generation is not None:
            bundle, policy = generation.bundle, generation.policy
            if policy == self._policy_of(entry.name):
                policy = self._policy_of(name)
            bundle = replace(bundle, spec=replace(bundle.spec, name=name))
            generation = replace(generation, bundle=bundle, policy=policy)
        return ModelEntry(name, entry.state, entry.reason, generation)

    def _unload(self, name: str, left: ModelEntry | None) -> None:
        entry = self._registry.entries.get(name)
        if entry is None:
            raise ModelNotFound(f"unknown model {name!r}")
        self._wanted.pop(name, None)
        self._registry.replace((name,), () if left is None else (left,))
        if entry.generation is not None:
            self._free(entry.generation, name)
        logger.info("model %s: unloaded", name)

    def _free(self, generation: Generation, name: str) -> None:
        with self._dispatcher.locked() as scheduler:
            orphans = scheduler.remove_model(generation.model_id)
        fail(orphans, ModelNotFound(f"model {name!r} was unloaded"))
        self._executor.remove_model(generation.model_id)
        self._weights.drop(generation.model_id)
        generation.bundle.hooks.close()
