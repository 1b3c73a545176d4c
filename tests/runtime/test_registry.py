"""Name → entry, replaced as a whole."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from app.domain.errors import ModelNotFound, ModelUnavailable
from app.repository.bundle import Bundle
from app.repository.hooks import Hooks
from app.runtime.registry import Generation, ModelEntry, ModelRegistry, ModelState
from tests.builders import spec


def entry(name, model_id=None, version="1", reason="", **changes):
    """A model that serves under `model_id`, or one that cannot."""
    if model_id is None:
        return ModelEntry(name, ModelState.UNAVAILABLE, reason)
    bundle = Bundle(Path(name), spec(name, version=version, **changes), Hooks(), "digest", None)
    return ModelEntry(name, ModelState.READY, reason, Generation(model_id, bundle))


@pytest.fixture
def registry():
    return ModelRegistry()


def test_a_reader_keeps_the_mapping_that_it_began_with(registry):
    registry.put(entry("a", "a@1"))
    before = registry.entries
    registry.put(entry("b", "b@1"))
    registry.put(entry("a", "a@2"))
    assert {name: each.generation.model_id for name, each in before.items()} == {"a": "a@1"}
    assert {name: each.generation.model_id for name, each in registry.entries.items()} == {"a": "a@2", "b": "b@1"}


def test_readers_cannot_change_it(registry):
    registry.put(entry("a", "a@1"))
    with pytest.raises(TypeError):
        registry.entries["b"] = entry("b")
    with pytest.raises(FrozenInstanceError):
        registry.entries["a"].state = ModelState.LOADING


def test_names_go_and_come_at_once(registry):
    for name in "abc":
        registry.put(entry(name, f"{name}@1"))
    registry.replace(("a", "b", "absent"), (entry("b", "a@1"), entry("d", "d@1")))
    assert {name: each.generation.model_id for name, each in registry.entries.items()} == {
        "b": "a@1",
        "c": "c@1",
        "d": "d@1",
    }


@pytest.mark.parametrize("reason", ["not loaded", "unloaded"])
def test_a_model_that_nobody_loaded_is_refused_with_what_would_load_it(registry, reason):
    registry.put(entry("a", reason=reason))
    with pytest.raises(ModelUnavailable, match=r"'a' is not loaded: .*POST /v2/repository/models/a/load"):
        registry.resolve_public("a")


def test_a_name_resolves_to_the_generation_that_serves(registry):
    registry.put(entry("a", "a@1"))
    assert registry.resolve("a").model_id == "a@1"
    assert registry.resolve("a", "1").model_id == "a@1"


@pytest.mark.parametrize("name", ["absent", "", "A", "../a"])
def test_an_unknown_name_is_not_found(registry, name):
    registry.put(entry("a", "a@1"))
    with pytest.raises(ModelNotFound, match="unknown model"):
        registry.resolve(name)


def test_a_meta_model_is_as_ready_as_what_it_calls(registry):
    registry.put(entry("meta", "meta@1", meta_models=("a", "b")))
    registry.put(entry("a", "a@1"))
    shown = registry.public["meta"]
    assert (shown.state, shown.reason) == (ModelState.UNAVAILABLE, "calls b, not loaded: load that too")
    registry.put(ModelEntry("b", ModelState.LOADING))
    assert (registry.public["meta"].state, registry.public["meta"].reason) == (ModelState.LOADING, "")
    registry.put(entry("b", "b@1"))
    assert registry.public["meta"] is registry.entries["meta"]
    assert registry.entries["meta"].state is ModelState.READY


def test_clients_are_told_why_they_cannot_ask_for_what_is_there(registry):
    registry.put(entry("a", "a@1"))
    registry.put(entry("b", "b@1", expose=False))
    registry.put(entry("c", "c@1", expose=True))
    registry.put(entry("pair", "pair@1", meta_models=("a", "c")))
    registry.put(entry("other", "other@1", meta_models=("a",)))
    with pytest.raises(ModelNotFound, match="'a' is internal: called by 'other', 'pair'; its manifest may say expose"):
        registry.resolve_public("a")
    with pytest.raises(ModelNotFound, match="'b' is internal: its manifest says expose: false"):
        registry.find_public("b")
    with pytest.raises(ModelNotFound, match="unknown model 'd'"):
        registry.resolve_public("d")
    assert registry.resolve_public("c").model_id == "c@1"


@pytest.mark.parametrize("version", ["2", "", "01", "1.0"])
def test_an_unknown_version_is_not_found_and_the_one_served_is_named(registry, version):
    registry.put(entry("a", "a@1"))
    with pytest.raises(ModelNotFound, match="the one served is '1'"):
        registry.resolve("a", version)


@pytest.mark.parametrize("state", [ModelState.LOADING, ModelState.UNAVAILABLE])
def test_a_model_that_cannot_serve_is_unavailable_and_keeps_its_reason_to_itself(registry, state):
    registry.put(ModelEntry("a", state, "/srv/models/a/manifest.yaml: no such key"))
    with pytest.raises(ModelUnavailable) as caught:
        registry.resolve("a")
    assert caught.value.message == f"model 'a' is {state}: /status says why"
    assert registry.entries["a"].reason.startswith("/srv/models")


def test_a_failed_reload_does_not_keep_the_old_version_from_serving(registry):
    registry.put(entry("a", "a@1", reason="the new one is broken"))
    assert registry.resolve("a").model_id == "a@1"
