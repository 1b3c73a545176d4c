"""Which settings make two measurements comparable."""

from dataclasses import replace

import pytest

from app.domain.config import ModelPolicy, SchedulerConfig
from app.engine.digests import PolicyDigests


@pytest.fixture
def generation(stage):
    return stage.load()


def test_equal_settings_have_equal_digests(stage, generation):
    digests = PolicyDigests(SchedulerConfig())
    other = replace(stage.load("n"), policy=ModelPolicy())
    assert digests.of(generation) == digests.of(other) == PolicyDigests(SchedulerConfig()).of(generation)


@pytest.mark.parametrize("policy", [{"weight": 2}, {"max_wait_ms": 1}, {"padding": "repeat"}, {"sizing": "fill"}])
def test_another_policy_has_another_digest(generation, policy):
    digests = PolicyDigests(SchedulerConfig())
    assert digests.of(replace(generation, policy=ModelPolicy(**policy))) != digests.of(generation)


@pytest.mark.parametrize("config", [{"discipline": "edf"}, {"cost_ema_alpha": 0.3}, {"shed": "edf"}])
def test_another_scheduler_has_another_digest(generation, config):
    assert PolicyDigests(SchedulerConfig(**config)).of(generation) != PolicyDigests(SchedulerConfig()).of(generation)


def test_the_padding_of_the_bundle_counts_and_the_policies_of_others_do_not(generation):
    others = SchedulerConfig(models={"other": ModelPolicy(weight=9)})
    assert PolicyDigests(others).of(generation) == PolicyDigests(SchedulerConfig()).of(generation)
    digests = PolicyDigests(SchedulerConfig())
    bundle = replace(generation.bundle, spec=replace(generation.bundle.spec, padding="repeat"))
    assert digests.of(replace(generation, bundle=bundle)) != digests.of(generation)


def test_many_policies_are_told_apart_also_when_some_were_forgotten(generation, monkeypatch):
    monkeypatch.setattr("app.engine.digests._MOST", 3)
    digests = PolicyDigests(SchedulerConfig())
    found = {digests.of(replace(generation, policy=ModelPolicy(weight=weight))) for weight in range(1, 11)}
    assert len(found) == 10
