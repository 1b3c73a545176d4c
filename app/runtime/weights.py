"""The models on the device, and what residency has to know of each. Dispatcher thread only: owned, not locked."""

import logging
from collections.abc import Collection
from math import inf

from app.backends.base import Backend, CacheEntry, LoadedModel, Prepared
from app.domain.config import Residency, RuntimeConfig
from app.domain.errors import ModelNotFound, ModelUnavailable
from app.domain.model import ModelSpec
from app.runtime.holdings import ModelResidency, WeightSnapshot
from app.scheduling.residency import Budget, Resident, budget

logger = logging.getLogger(__name__)


class _Held:
    """One model that is known, on the device or not."""

    __slots__ = (
        "entry", "evicts", "floor", "load_seconds", "load_seconds_total", "loaded_at", "loads", "model", "reserved",
        "spec", "used_at", "worked",
    )  # fmt: skip

    def __init__(self, entry: CacheEntry, spec: ModelSpec, floor: Residency) -> None:
        self.entry = entry
        self.spec = spec
        self.floor = floor
        self.model: LoadedModel | None = None
        self.loaded_at = -inf
        self.used_at = -inf
        self.load_seconds = entry.load_seconds
        self.load_seconds_total = 0.0
        self.reserved = False
        """Its place is kept: it is on its way, or not in service yet."""
        self.worked = False
        self.loads = 0
        self.evicts = 0


class WeightCache:
    """Every known model by its `model_id`.

    With an arena, weights come and go; without one every model stays where it is.
    """

    def __init__(self, backend: Backend, config: RuntimeConfig, arena: int = 0) -> None:
        self._backend = backend
        self._config = config
        self._arena = arena
        self._held: dict[str, _Held] = {}
        self._compactions = 0
        self._demand_loads = 0
        self._snapshot = WeightSnapshot(arena, Budget(0, 0, 0), 0, 0, 0, 0, 0, {})
        self._warned = False

    @property
    def comes_and_goes(self) -> bool:
        """Whether there is a budget, so that weights may have to leave."""
        return self._arena > 0

    def default_floor(self) -> Residency:
        """The floor of a model whose policy names none."""
        return Residency.SYSTEM if self.comes_and_goes else Residency.UNPINNED

    def add(self, model_id: str, entry: CacheEntry, spec: ModelSpec, floor: Residency | None) -> None:
        """Know a model, which is not on the device yet."""
        held = self._held[model_id] = _Held(entry, spec, floor or self.default_floor())
        if held.floor is not Residency.UNPINNED:
            self._backend.keep_warm(entry)
        self._publish(model_id)

    def put(
        self, model_id: str, prepared: Prepared, seconds: float, now: float, *, on_demand: bool = False
    ) -> LoadedModel:
        """Take over a prepared model that took so many seconds to load, `on_demand` of requests or for an operator.

        Raises `ModelNotFound`.
        """
        held = self._find(model_id)
        if held.model is not None:
            held.model.unload()
        held.model = prepared.load()
        held.loaded_at = held.used_at = now
        held.load_seconds = seconds
        held.load_seconds_total += seconds
        held.loads += 1
        self._demand_loads += on_demand
        held.worked = False
        self._publish(model_id)
        return held.model

    def acquire(self, model_id: str, now: float) -> LoadedModel:
        """The model, on the device, about to be used. Raises `ModelNotFound`, or `ModelUnavailable` when it is not."""
        held = self._find(model_id)
        if held.model is None:
            raise ModelUnavailable("the weights of the model are not on the device", reason="not_resident")
        held.used_at = now
        held.worked = True
        return held.model

    def used(self, model_id: str, since: float, now: float) -> float:
        """End a use for work queued at `since`: seconds of the model's load if it waited for that, else 0."""
        held = self._find(model_id)
        held.used_at = now
        return held.load_seconds if held.loaded_at > since else 0.0

    def load_seconds(self, model_id: str) -> float:
        """What the latest load took, or one on an earlier day; 0 while unknown."""
        return self._find(model_id).load_seconds

    def reserve(self, model_id: str) -> None:
        """Keep a model's place on the device, whether it is there already or on its way. Raises `ModelNotFound`."""
        self._find(model_id).reserved = True

    def release(self, model_id: str) -> None:
        """What is on the device may leave again; what is not there has no place. Harmless for one that is unknown."""
        if held := self._held.get(model_id):
            held.reserved = False

    def source(self, model_id: str) -> tuple[CacheEntry, ModelSpec]:
        """What a load needs to know. Raises `ModelNotFound`."""
        held = self._find(model_id)
        return held.entry, held.spec

    def knows(self, model_id: str) -> bool:
        """Whether the model was added and not dropped."""
        return model_id in self._held

    def is_resident(self, model_id: str) -> bool:
        """Whether the model is on the device; False for one that is not known."""
        held = self._held.get(model_id)
        return held is not None and held.model is not None

    def weight_bytes(self, model_id: str) -> int:
        """Bytes of a model's weights. Raises `ModelNotFound`."""
        return self._find(model_id).entry.weight_bytes

    def carry_over(self, old_id: str, new_id: str) -> None:
        """Let a new generation go on counting where the old one is. Raises `ModelNotFound`."""
        old, new = self._find(old_id), self._find(new_id)
        new.loads += old.loads
        new.evicts += old.evicts
        new.load_seconds_total += old.load_seconds_total
        self._publish(new_id)

    def set_floor(self, model_id: str, floor: Residency | None) -> None:
        """Change the least place a model may sink to; weights move when something else makes them. `ModelNotFound`."""
        held = self._find(model_id)
        held.floor = floor or self.default_floor()
        if held.floor is not Residency.UNPINNED:
            self._backend.keep_warm(held.entry)
        self._publish(model_id)

    def evict(self, model_id: str) -> None:
        """Free the weights on the device; the model stays known. Harmless when it has none there."""
        held = self._held.get(model_id)
        if held is None or held.model is None:
            return
        held.model.unload()
        held.model = None
        held.evicts += 1
        if held.floor is Residency.UNPINNED:
            self._backend.let_go(held.entry)
        self._publish(model_id)

    def drop(self, model_id: str) -> None:
        """Free a model's weights and forget it; harmless when it is not known."""
        held = self._held.pop(model_id, None)
        if held is not None:
            if held.model is not None:
                held.model.unload()
            self._publish(model_id)

    def drop_all(self) -> None:
        """Free everything."""
        for model_id in tuple(self._held):
            self.drop(model_id)

    def shrink(self, *, compaction: bool = True) -> None:
        """Give the memory back that executions left in the arenas, and count a compaction, if it is one."""
        self._backend.shrink()
        self._compactions += compaction
        self._publish()

    def needed_bytes(self, model_id: str) -> int:
        """What a model takes of the budget on demand; nothing where it is pinned, which has its place already.

        Raises `ModelNotFound`.
        """
        held = self._find(model_id)
        return 0 if held.floor is Residency.DEVICE else held.entry.weight_bytes

    def floor(self, model_id: str) -> Residency:
        """The least place a model may sink to. Raises `ModelNotFound`."""
        return self._find(model_id).floor

    def is_reserved(self, model_id: str) -> bool:
        """Whether a model is on its way, or not in service yet; False for one that is not known."""
        held = self._held.get(model_id)
        return held is not None and held.reserved

    @property
    def budget(self) -> Budget:
        """What weights may fill, as of now."""
        return self._snapshot.budget

    @property
    def taken_bytes(self) -> int:
        """Bytes of the budget on demand that are taken by models which may not leave now."""
        return sum(
            [h.entry.weight_bytes for h in self._held.values() if h.reserved and h.floor is not Residency.DEVICE]
        )

    def free_bytes(self, model_id: str) -> int:
        """Bytes of the pool that no other model has, is to have, or is pinned to."""
        taken = [
            h.entry.weight_bytes
            for other, h in self._held.items()
            if other != model_id and (h.model is not None or h.reserved or h.floor is Residency.DEVICE)
        ]
        return max(self.budget.pool - sum(taken), 0)

    def evictable(self, queued: Collection[str]) -> list[Resident]:
        """The models on the device that may leave it; `queued` are those with queued work."""
        return [
            Resident(
                model_id, held.entry.weight_bytes, held.used_at, held.loaded_at, held.load_seconds, held.worked,
                model_id in queued,
            )
            for model_id, held in self._held.items()
            if held.model is not None and held.floor is not Residency.DEVICE and not held.reserved
        ]  # fmt: skip

    def snapshot(self) -> WeightSnapshot:
        """What is where; any thread (the value is swapped whole)."""
        return self._snapshot

    def _find(self, model_id: str) -> _Held:
        try:
            return self._held[model_id]
        except KeyError:
            raise ModelNotFound("the model was unloaded") from None

    def _publish(self, changed: str | None = None) -> None:
        """Swap the snapshot; of the models only the one that `changed` is described anew, since there may be many."""
        held = self._held.values()
        models = dict(self._snapshot.models)
        if changed is not None:
            models.pop(changed, None)
            if changed in self._held:
                models[changed] = _described(changed, self._held[changed])
        scratch = max([each.entry.scratch_bytes for each in held], default=0)
        pinned = sum([each.entry.weight_bytes for each in held if each.floor is Residency.DEVICE])
        found = budget(
            self._arena,
            fraction=self._config.weight_cache_fraction,
            wiggle=self._config.weight_cache_wiggle_fraction,
            scratch=scratch,
            pinned=pinned,
        )
        self._warn(found, pinned)
        self._snapshot = WeightSnapshot(
            self._arena,
            found,
            scratch,
            pinned,
            sum([each.entry.weight_bytes for each in held if each.model is not None]),
            self._compactions,
            self._demand_loads,
            models,
        )

    def _warn(self, found: Budget, pinned: int) -> None:
        starved = self.comes_and_goes and pinned > 0 and found.on_demand == 0
        if starved and not self._warned:
            logger.warning(
                "the weights pinned to the device (%d bytes) leave nothing of the %d bytes that weights may fill: "
                "other models are loaded one at a time",
                pinned,
                found.pool,
            )
        self._warned = starved


def _described(model_id: str, held: _Held) -> ModelResidency:
    model = held.model
    return ModelResidency(
        model_id,
        held.entry.weight_bytes,
        held.floor,
        model is not None,
        "" if model is None else model.provider,
        held.entry.replayed,
        held.loads,
        held.evicts,
        held.load_seconds_total,
    )
