"""The models on the device."""

import pytest

from app.backends.base import CacheEntry
from app.backends.fake import FakeBackend
from app.domain.errors import ModelNotFound
from app.runtime.weights import ResidentModel, WeightCache
from tests.builders import spec


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def prepare(backend, tmp_path):
    return lambda name, nbytes=10: backend.prepare(CacheEntry(tmp_path, "plain", nbytes), spec(name))


def test_a_model_is_there_until_it_is_dropped(backend, prepare):
    weights = WeightCache()
    model = weights.put("a@1", prepare("a"))
    assert weights.acquire("a@1") is model
    weights.drop("a@1")
    weights.drop("a@1")
    assert backend.loaded == []
    with pytest.raises(ModelNotFound, match="was unloaded"):
        weights.acquire("a@1")


def test_the_snapshot_tells_weights_and_provider(prepare):
    weights = WeightCache()
    before = weights.snapshot()
    weights.put("a@1", prepare("a", 10))
    weights.put("b@2", prepare("b", 20))
    assert before == ()
    assert weights.snapshot() == (
        ResidentModel("a@1", 10, "FakeExecutionProvider"),
        ResidentModel("b@2", 20, "FakeExecutionProvider"),
    )
    weights.drop("a@1")
    assert [each.model_id for each in weights.snapshot()] == ["b@2"]


def test_everything_can_be_dropped(backend, prepare):
    weights = WeightCache()
    for name in "ab":
        weights.put(name, prepare(name))
    weights.drop_all()
    assert backend.loaded == []
    assert weights.snapshot() == ()
