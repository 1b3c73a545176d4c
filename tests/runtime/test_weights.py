"""The models on the device, and what the budget says of them."""

import pytest

from app.backends.base import CacheEntry
from app.backends.fake import FakeBackend
from app.domain.config import Residency, RuntimeConfig
from app.domain.errors import ModelNotFound, ModelUnavailable
from app.runtime.weights import WeightCache
from tests.builders import spec


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def make(backend):
    """A cache with an arena of so many bytes, no margin."""
    return lambda arena=0, **config: WeightCache(
        backend, RuntimeConfig(**{"weight_cache_wiggle_fraction": 0.0, **config}), arena
    )


@pytest.fixture
def add(backend, tmp_path):
    """Let a cache know a model, and have it on the device unless `cold`."""

    def add(weights, name, nbytes=10, *, floor=None, cold=False, seconds=0.5, now=0.0, scratch=0):
        entry = CacheEntry(tmp_path / name, "plain", nbytes, scratch_bytes=scratch)
        weights.add(name, entry, spec(name), floor)
        return None if cold else weights.put(name, backend.prepare(entry, spec(name)), seconds, now)

    return add


def resident(weights):
    return {each.model_id for each in weights.snapshot().models.values() if each.resident}


def test_a_model_is_there_until_it_is_dropped(backend, make, add):
    weights = make()
    model = add(weights, "a@1")
    assert weights.acquire("a@1", 1.0) is model
    weights.drop("a@1")
    weights.drop("a@1")
    assert backend.loaded == []
    with pytest.raises(ModelNotFound, match="was unloaded"):
        weights.acquire("a@1", 1.0)


def test_a_model_that_is_not_on_the_device_says_so(make, add):
    weights = make()
    add(weights, "a", cold=True)
    with pytest.raises(ModelUnavailable) as caught:
        weights.acquire("a", 1.0)
    assert caught.value.code == "not_resident"


def test_an_evicted_model_is_known_and_its_memory_free(backend, make, add):
    weights = make(100)
    add(weights, "a")
    weights.evict("a")
    weights.evict("a")
    assert (backend.loaded, resident(weights), weights.knows("a")) == ([], set(), True)
    [told] = weights.snapshot().models.values()
    assert (told.loads, told.evicts, told.provider) == (1, 1, "")


def test_the_snapshot_tells_weights_and_provider(make, add):
    weights = make()
    before = weights.snapshot()
    add(weights, "a", 10, seconds=0.5)
    add(weights, "b", 20)
    told = weights.snapshot()
    assert (before.models, before.resident_bytes) == ({}, 0)
    assert told.resident_bytes == 30
    assert [(each.model_id, each.weight_bytes, each.provider, each.load_seconds) for each in told.models.values()] == [
        ("a", 10, "FakeExecutionProvider", 0.5),
        ("b", 20, "FakeExecutionProvider", 0.5),
    ]
    weights.drop("a")
    assert resident(weights) == {"b"}


def test_the_budget_follows_what_is_known(make, add):
    """SPEC: arena 1000, wiggle a tenth, scratch 300, pinned 200 leave 900, 600, 400."""
    weights = make(1000, weight_cache_wiggle_fraction=0.1)
    add(weights, "hungry", 1, cold=True, scratch=300)
    add(weights, "modest", 1, cold=True, scratch=200)
    add(weights, "pinned", 200, floor=Residency.DEVICE)
    assert weights.budget == (900, 600, 400)
    weights.drop("hungry")
    assert weights.budget == (900, 700, 500)
    weights.set_floor("pinned", Residency.SYSTEM)
    assert weights.budget == (900, 700, 700)


def test_pinned_weights_that_leave_nothing_are_warned_of_once(make, add, caplog):
    weights = make(1000, weight_cache_wiggle_fraction=0.1)
    add(weights, "hungry", 1, cold=True, scratch=300)
    add(weights, "pinned", 700, floor=Residency.DEVICE)
    assert weights.budget.on_demand == 0
    add(weights, "other", 1, cold=True)
    assert len([message for message in caplog.messages if "leave nothing" in message]) == 1


def test_pinned_and_reserved_models_do_not_leave(make, add):
    weights = make(100)
    add(weights, "a")
    add(weights, "pinned", floor=Residency.DEVICE)
    add(weights, "entering")
    weights.reserve("entering")
    assert [each.model_id for each in weights.evictable(())] == ["a"]
    assert weights.taken_bytes == 10
    assert (weights.free_bytes("another"), weights.free_bytes("a")) == (70, 80)
    weights.release("entering")
    weights.release("unknown")
    assert [each.model_id for each in weights.evictable({"entering"}) if each.queued] == ["entering"]


def test_use_and_work_are_remembered_for_the_next_eviction(make, add):
    weights = make(100)
    add(weights, "a", now=1.0, seconds=0.25)
    [fresh] = weights.evictable(())
    assert (fresh.used_at, fresh.loaded_at, fresh.load_seconds, fresh.worked) == (1.0, 1.0, 0.25, False)
    weights.acquire("a", 2.0)
    [used] = weights.evictable(())
    assert (used.used_at, used.loaded_at, used.worked) == (2.0, 1.0, True)
    assert weights.used("a", 0.5, 3.0) == 0.25
    assert weights.used("a", 1.0, 4.0) == 0.0
    [used] = weights.evictable(())
    assert used.used_at == 4.0


@pytest.mark.parametrize(
    ("floor", "arena", "warm_while_there", "warm_after"),
    [
        (None, 100, True, True),
        (Residency.SYSTEM, 100, True, True),
        (Residency.UNPINNED, 100, False, False),
        (None, 0, False, False),
    ],
)
def test_the_floor_says_where_evicted_weights_wait(backend, make, add, floor, arena, warm_while_there, warm_after):
    weights = make(arena)
    add(weights, "a", floor=floor)
    assert ("a" in backend.warm) is warm_while_there
    weights.evict("a")
    assert ("a" in backend.warm) is warm_after


def test_everything_can_be_dropped(backend, make, add):
    weights = make()
    for name in "ab":
        add(weights, name)
    weights.drop_all()
    assert backend.loaded == []
    assert weights.snapshot().models == {}
