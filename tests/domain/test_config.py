"""Every configured value has bounds, and nothing unknown is taken."""

from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from app.domain.config import EndpointsConfig, ModelPolicy, RuntimeConfig, SchedulerConfig

SECTIONS = [ModelPolicy, SchedulerConfig, RuntimeConfig, EndpointsConfig]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_defaults_are_valid(section):
    defaults = section().model_dump()
    assert section.model_validate(defaults) == section()


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_is_refused(section):
    with pytest.raises(ValidationError, match="wieght"):
        section.model_validate({"wieght": 1})


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_says_what_it_is(section):
    assert all(field.description for field in section.model_fields.values())


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_cannot_be_changed(section):
    name = next(iter(section.model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(section(), name, None)


GOOD = [
    (ModelPolicy, {"weight": 1e-9, "max_batch_size": 1, "max_wait_ms": 0, "reserve_ms": 0, "default_timeout_ms": 0}),
    (ModelPolicy, {"max_wait_ms": 86_400_000, "reserve_ms": 86_400_000, "default_timeout_ms": 86_400_000}),
    (ModelPolicy, {"residency": "system", "sizing": "fill", "padding": "repeat", "fallback": "other"}),
    (SchedulerConfig, {"recency_penalty_cap": 1, "coalescing_discount": 0, "cost_ema_alpha": 1, "max_queue_depth": 1}),
    (SchedulerConfig, {"compaction_interval": 0, "fair_credit_seconds": 0, "admission": "predict"}),
    (RuntimeConfig, {"mem_fraction": 1, "weight_cache_fraction": 0, "weight_cache_wiggle_fraction": 0}),
    (EndpointsConfig, {"port": 65535, "max_concurrent_requests": 1, "max_body_bytes": 1}),
]


@pytest.mark.parametrize(("section", "values"), GOOD)
def test_the_edges_of_the_ranges_are_taken(section, values):
    assert section.model_validate(values).model_dump(mode="json").items() >= values.items()


BAD: list[tuple[type[BaseModel], str, list[Any]]] = [
    (ModelPolicy, "weight", [0, -1, "nan", "inf"]),
    (ModelPolicy, "max_batch_size", [0, 1.5]),
    (ModelPolicy, "residency", ["host"]),
    (ModelPolicy, "max_wait_ms", [-1, 86_400_001, "inf"]),
    (ModelPolicy, "reserve_ms", [-1, 86_400_001]),
    (ModelPolicy, "default_timeout_ms", [-1, 86_400_001, "inf"]),
    (ModelPolicy, "sizing", ["best"]),
    (ModelPolicy, "padding", ["ones"]),
    (SchedulerConfig, "discipline", ["lifo"]),
    (SchedulerConfig, "ema_halflife_seconds", [0, "inf"]),
    (SchedulerConfig, "recency_penalty_cap", [0, 1.01]),
    (SchedulerConfig, "coalescing_discount", [-0.01, 1]),
    (SchedulerConfig, "cost_ema_alpha", [0, 1.01]),
    (SchedulerConfig, "max_queue_depth", [0]),
    (SchedulerConfig, "dispatch_timeout_seconds", [0, "nan"]),
    (SchedulerConfig, "compaction_interval", [-1]),
    (SchedulerConfig, "fair_credit_seconds", [-0.1]),
    (SchedulerConfig, "admission", ["always"]),
    (SchedulerConfig, "models", [{"m": {"weight": 0}}, {"m": {"x": 1}}, [1]]),
    (RuntimeConfig, "backend", ["tpu"]),
    (RuntimeConfig, "device_ordinal", [-1]),
    (RuntimeConfig, "mem_fraction", [0, 1.1]),
    (RuntimeConfig, "device_memory_bytes", [-1]),
    (RuntimeConfig, "weight_cache_fraction", [-0.1, 1.1]),
    (RuntimeConfig, "weight_cache_wiggle_fraction", [-0.1, 1]),
    (RuntimeConfig, "intra_op_threads", [0]),
    (EndpointsConfig, "port", [-1, 65536]),
    (EndpointsConfig, "max_concurrent_requests", [0]),
    (EndpointsConfig, "max_body_bytes", [0]),
    (EndpointsConfig, "max_json_bytes", [0]),
    (EndpointsConfig, "max_inflight_bytes", [0]),
    (EndpointsConfig, "keep_alive_seconds", [0]),
    (EndpointsConfig, "api_token", [""]),
    (EndpointsConfig, "admin_token", [""]),
    (EndpointsConfig, "ssl_keyfile", ["key.pem"]),
]


@pytest.mark.parametrize(("section", "field", "value"), [(s, f, value) for s, f, values in BAD for value in values])
def test_a_value_outside_its_range_is_refused(section, field, value):
    with pytest.raises(ValidationError, match=field):
        section.model_validate({field: value})


def test_tokens_do_not_show():
    config = EndpointsConfig(api_token=SecretStr("a-secret"), admin_token=SecretStr("b-secret"))
    assert "secret" not in f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"
