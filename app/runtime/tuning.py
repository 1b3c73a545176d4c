"""Admin changes to models that serve: policy, residency, compaction. Applied on the dispatcher thread."""

import concurrent.futures
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.domain.batch_safety import Verdict, judge
from app.domain.config import ModelPolicy, Residency
from app.domain.errors import BundleError, InvalidRequest, ModelUnavailable, OutOfMemory, Unsupported
from app.runtime.dispatcher import Dispatcher
from app.runtime.executor import Executor
from app.runtime.fallbacks import check_fallbacks
from app.runtime.pending import fail
from app.runtime.registry import Generation, ModelRegistry
from app.runtime.residency import Compaction, ResidencyKeeper
from app.runtime.weights import WeightCache

logger = logging.getLogger(__name__)


class Tuning:
    """Every method may be called from any thread and returns a future.

    `external` says that operators move the weights: in `explicit` mode, and nowhere else.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        weights: WeightCache,
        keeper: ResidencyKeeper,
        registry: ModelRegistry,
        *,
        external: bool = False,
    ) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._weights = weights
        self._keeper = keeper
        self._registry = registry
        self._external = external

    def set_policy(
        self, name: str, change: Callable[[ModelPolicy], ModelPolicy]
    ) -> concurrent.futures.Future[ModelPolicy]:
        """Change the policy of a model; the future holds the new one, or raises `ModelNotFound` or what `change` does.

        `change` gets the policy in force, on the dispatcher thread: of two changes at once none is lost.
        """

        def apply() -> ModelPolicy:
            old = self._registry.resolve(name)
            generation = replace(old, policy=change(old.policy))
            if generation.policy.residency != old.policy.residency:
                raise Unsupported(f"residency is not changed by a policy: {self._how_to_move()}")
            self._check_padding(old, generation)
            try:
                check_fallbacks(name, generation, self._registry.entries)
            except BundleError as error:
                raise InvalidRequest(error.message) from None
            with self._dispatcher.locked() as scheduler:
                scheduler.set_policy(generation.model_id, generation.policy)
            self._executor.add_model(generation.model_id, generation.bundle.spec, generation.policy.padding)
            self._put(name, generation)
            logger.info("policy of model %s: %s -> %s", name, old.policy, generation.policy)
            return generation.policy

        return self._dispatcher.call(apply)

    def set_residency(self, name: str, residency: Residency) -> concurrent.futures.Future[None]:
        """Move the weights of a model: to the device now, or off it now, to be refused until they return.

        The future raises `Unsupported` where the server moves the weights, `ModelNotFound`, `OutOfMemory` naming the
        bytes, or what a load raises.
        """

        def change() -> None:
            model_id = self._dispatcher.call(begin).result()
            if residency is Residency.DEVICE:
                self._bring(name, model_id)
                self._dispatcher.call(lambda: end(model_id)).result()

        def begin() -> str:
            if not self._external:
                raise Unsupported(f"the server moves weights by itself: {self._how_to_move()}")
            if self._registry.resolve(name).bundle.spec.is_meta:
                raise Unsupported(f"meta model {name!r} has no weights of its own: move those of the models it calls")
            model_id = self._registry.resolve(name).model_id
            if residency is not Residency.DEVICE:
                self._keeper.take_off([model_id])
                end(model_id)
            return model_id

        def end(model_id: str) -> None:
            self._weights.set_floor(model_id, residency)
            self._see(name)
            logger.info("residency of model %s: %s", name, residency)

        return self._keeper.submit(change)

    def compact(self, reload: Sequence[str]) -> concurrent.futures.Future[Compaction]:
        """Free every model that is not pinned, shrink the arenas, then load the listed ones again.

        The future raises `ModelNotFound` before anything is freed, or what a load raises.
        """

        def change() -> Compaction:
            models, freed = self._dispatcher.call(begin).result()
            try:
                for name, model_id in models:
                    self._bring(name, model_id)
            finally:
                after = self._dispatcher.call(look).result()
            return Compaction(freed.before_bytes, after)

        def begin() -> tuple[list[tuple[str, str]], Compaction]:
            models = [each for name in reload for each in self._weights_of(name)]
            freed = self._keeper.compact()
            return models if self._weights.comes_and_goes else [], freed

        def look() -> int:
            for name in tuple(self._registry.entries):
                self._see(name)
            return self._weights.snapshot().resident_bytes

        return self._keeper.submit(change)

    def prefetch(self, names: Sequence[str]) -> concurrent.futures.Future[None]:
        """Bring weights to the device before they are asked for; those that nobody waits for leave for them.

        The future raises `Unsupported` where operators move the weights, `ModelNotFound`, or what a load raises.
        """

        def change() -> None:
            for name, model_id in self._dispatcher.call(begin).result():
                self._bring(name, model_id, forced=True)

        def begin() -> list[tuple[str, str]]:
            if self._external:
                raise Unsupported("operators move the weights: use /admin/set_residency")
            models = [each for name in names for each in self._weights_of(name)]
            return models if self._weights.comes_and_goes else []

        return self._keeper.submit(change)

    def _how_to_move(self) -> str:
        if self._external:
            return "use /admin/set_residency"
        return "start it with MODEL_CONTROL_MODE=explicit and use /admin/set_residency, or with SCHEDULER_MODELS"

    # weights thread

    def _bring(self, name: str, model_id: str, *, forced: bool = False) -> None:
        """Bring a model to the device. Raises `OutOfMemory` with its name."""
        try:
            self._keeper.bring(model_id, forced=forced)
        except OutOfMemory as error:
            raise OutOfMemory(f"model {name!r}: {error.message}") from None

    # dispatcher thread

    def _weights_of(self, name: str) -> list[tuple[str, str]]:
        """The models, and their ids, whose weights a name stands for: of a meta model those that it calls."""
        calls = self._registry.resolve(name).bundle.spec.meta_models
        return [(each, self._registry.resolve(each).model_id) for each in ((name,) if calls is None else calls)]

    def _check_padding(self, old: Generation, new: Generation) -> None:
        """Raise `Unsupported` for padding under which batches, which are verified at a load, are not safe."""
        spec = new.bundle.spec
        if new.policy.padding == old.policy.padding or not spec.coalescible or spec.is_meta:
            return
        probe = self._weights.source(new.model_id)[0].batch_probe
        safety = judge(spec.outputs, probe, spec.batch_check, new.policy.padding or spec.padding)
        if safety.verdict is Verdict.UNSAFE and spec.batch_check.verify == "enforce":
            raise Unsupported(f"with that padding the batches of the model are not safe: {safety.reason}")

    def _see(self, name: str) -> None:
        """Let requests know whether the weights are where an operator has to bring them; those queued are refused."""
        entry = self._registry.entries.get(name)
        if not self._external or entry is None or (generation := entry.generation) is None:
            return
        if generation.bundle.spec.is_meta:
            return  # it has no weights: those of the models it calls are looked at when it runs
        resident = self._weights.is_resident(generation.model_id)
        if resident != generation.resident:
            self._put(name, replace(generation, resident=resident))
        if not resident:
            with self._dispatcher.locked() as scheduler:
                orphans = scheduler.drain(generation.model_id)
            fail(orphans, ModelUnavailable(f"the weights of model {name!r} left the device", reason="not_resident"))

    def _put(self, name: str, generation: Generation) -> None:
        self._registry.put(replace(self._registry.entries[name], generation=generation))
