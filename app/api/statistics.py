"""The statistics extension: per model how often, and how long in each stage, in nanoseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from app.api.paths import Version
from app.api.schemas import Statistics
from app.engine.engine import Engine
from app.engine.status import NodeStatus, Serving
from app.engine.status_reader import StatusReader
from app.runtime.accounts import STAGES

#: Stage of the protocol → ours.
_STAGES: Mapping[str, Sequence[str]] = {
    "queue": ("queue", "load"),
    "compute_input": ("decode", "preprocess"),
    "compute_infer": ("compute",),
    "compute_output": ("postprocess", "encode"),
}


def router(engine: Engine, status: StatusReader) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["V2"])

    def statistics(node: NodeStatus) -> dict[str, Any]:
        return {
            "model_stats": [
                _model(model.name, model.serving, node, engine) for model in node.models if model.serving is not None
            ]
        }

    @routes.get("/v2/models/stats", summary="Statistics of every model that serves", response_model=Statistics)
    async def all_models() -> dict[str, Any]:
        return statistics(await status.read_in_turns())

    @routes.get("/v2/models/{model}/stats", summary="Statistics of a model", response_model=Statistics)
    @routes.get(
        "/v2/models/{model}/versions/{version}/stats", summary="Statistics of a model", response_model=Statistics
    )
    async def one_model(model: str, version: Version) -> dict[str, Any]:
        name = engine.registry.resolve_public(model, version).bundle.spec.name
        told = status.read(only=name)
        return statistics(replace(told, models=tuple(each for each in told.models if each.name == name)))

    return routes


def _model(name: str, serving: Serving, node: NodeStatus, engine: Engine) -> dict[str, Any]:
    entry = engine.registry.public.get(name)
    generation = entry.generation if entry is not None else None
    # A meta model has no executions of its own: each request is one.
    meta = generation is not None and generation.bundle.spec.is_meta
    on_device = {"type": "CPU", "id": 0} if node.device == "cpu" else {"type": "GPU", "id": int(node.device)}
    return {
        "name": name,
        "version": serving.version,
        "last_inference": _last(serving.answered_at, engine),
        "inference_count": serving.ok if meta else serving.rows,
        "execution_count": serving.ok if meta else serving.dispatches,
        "inference_stats": _requests(serving),
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(0, 0.0),  # known of requests, not of batches
                "compute_infer": _duration(count, serving.batch_seconds[rows]),
                "compute_output": _duration(0, 0.0),
            }
            for rows, count in sorted(serving.batch_rows.items())
        ],
        "memory_usage": [{**on_device, "byte_size": serving.weight_bytes}] if serving.resident else [],
    }


def _requests(serving: Serving) -> dict[str, Any]:
    """Every answered request counts in every stage: clients take the counts to be equal."""
    seconds = dict(zip(STAGES, serving.stage_sums, strict=True))
    lost = serving.failed + sum(serving.dropped.values())
    return {
        "success": _duration(serving.ok, serving.ok_seconds),
        "fail": _duration(lost, serving.latency_sum - serving.ok_seconds if lost else 0.0),
        **{stage: _duration(serving.ok, sum([seconds[name] for name in names])) for stage, names in _STAGES.items()},
        "cache_hit": _duration(0, 0.0),
        "cache_miss": _duration(0, 0.0),
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


def _last(answered_at: float | None, engine: Engine) -> int:
    """Milliseconds since 1970; 0 for never."""
    if answered_at is None:
        return 0
    return round((datetime.now(UTC).timestamp() - (engine.clock() - answered_at)) * 1e3)
