"""The model configuration extension: as much of Triton's model configuration as says something here."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from app.api.metadata import PLATFORM
from app.api.paths import Version
from app.api.schemas import ModelConfiguration
from app.domain.config import ModelPolicy
from app.domain.model import ModelSpec
from app.domain.tensors import TensorSpec
from app.engine.engine import Engine


def router(engine: Engine) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["V2"])

    told: dict[str, Any] = {
        "summary": "Model configuration",
        "response_model": ModelConfiguration,
        "response_model_exclude_unset": True,
    }

    @routes.get("/v2/models/{model}/config", **told)
    @routes.get("/v2/models/{model}/versions/{version}/config", **told)
    async def config(model: str, version: Version) -> dict[str, Any]:
        generation = engine.registry.resolve_public(model, version)
        return configuration(generation.bundle.spec, generation.policy)

    return routes


def configuration(spec: ModelSpec, policy: ModelPolicy) -> dict[str, Any]:
    """The configuration of one model.

    A positive `max_batch_size` says that the first axis of every tensor is the batch, which `dims` then leaves out. It
    is the most rows of one execution, not of a request: larger ones are cut. Where the batch is elsewhere, or not in
    every tensor, it is 0 and `dims` are whole.
    """
    batched = all(each.batch_axis == 0 for each in (*spec.client_inputs, *spec.client_outputs))
    sizes = sorted({size for variant in spec.variants for size in spec.sizes(variant.key)})
    most = min([size for size in (policy.max_batch_size, spec.max_batch_size, *sizes[-1:]) if size] or [1])
    told: dict[str, Any] = {
        "name": spec.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "version_policy": {"specific": {"versions": [spec.version]}},
        "max_batch_size": most if batched else 0,
        "input": _tensors(spec.client_inputs, batched=batched),
        "output": _tensors(spec.client_outputs, batched=batched),
        "parameters": {},
    }
    if spec.coalescible:
        microseconds = round(policy.max_wait_ms * 1e3)
        told["dynamic_batching"] = {"preferred_batch_size": sizes, "max_queue_delay_microseconds": microseconds}
    return told


def _tensors(specs: Sequence[TensorSpec], *, batched: bool) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "data_type": _data_type(spec.datatype), "dims": list(spec.shape[1 if batched else 0 :])}
        for spec in specs
    ]


def _data_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
