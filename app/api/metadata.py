"""What there is to serve: server and model metadata, health, readiness."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app.api.paths import Version
from app.api.schemas import Error, Live, ModelMetadata, ModelNames, ModelReady, Ready, ServerMetadata
from app.domain.tensors import TensorSpec
from app.engine.engine import Engine
from app.engine.readiness import Readiness
from app.runtime.registry import ModelState

SERVER_NAME = "inference-server"

#: Only what is implemented.
EXTENSIONS = (
    "classification", "model_repository", "model_configuration", "binary_tensor_data", "parameters", "statistics",
    "logging",
)  # fmt: skip

#: And this where it is offered.
SHARED_MEMORY = "system_shared_memory"

PLATFORM = "onnx_onnxv1"


def tensor_metadata(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Tensors in the form of V2 model metadata; -1 marks variable extents, the batch axis included."""
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]


def router(engine: Engine, readiness: Readiness, version: str, *, shared_memory: bool) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["V2"])
    extensions = [*EXTENSIONS, *([SHARED_MEMORY] if shared_memory else [])]
    _health(routes, engine, readiness)
    _models(routes, engine)

    @routes.get("/v2", summary="Server metadata", response_model=ServerMetadata)
    @routes.get("/v2/", include_in_schema=False)
    async def server() -> dict[str, Any]:
        return {"name": SERVER_NAME, "version": version, "extensions": extensions}

    return routes


def _health(routes: APIRouter, engine: Engine, readiness: Readiness) -> None:
    @routes.get(
        "/v2/health/live",
        summary="Whether the process should go on living",
        response_model=Live,
        responses={503: {"model": Live, "description": "It should not."}},
    )
    async def live() -> Response:
        return JSONResponse({"live": engine.alive}, 200 if engine.alive else 503)

    @routes.get(
        "/v2/health/ready",
        summary="Whether requests should be sent here",
        response_model=Ready,
        responses={503: {"model": Ready, "description": "They should not."}},
    )
    async def ready() -> Response:
        is_ready = readiness.ready(engine.registry.told, engine.alive)
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


def _models(routes: APIRouter, engine: Engine) -> None:
    @routes.get("/v2/models", summary="Names of the models", response_model=ModelNames)
    async def models() -> dict[str, list[str]]:
        return {"models": sorted(engine.registry.public)}

    @routes.get("/v2/models/{model}", summary="Model metadata", response_model=ModelMetadata)
    @routes.get("/v2/models/{model}/versions/{version}", summary="Model metadata", response_model=ModelMetadata)
    async def metadata(model: str, version: Version) -> dict[str, Any]:
        generation = engine.registry.resolve_public(model, version)
        bundle, spec = generation.bundle, generation.bundle.spec
        return {
            "name": spec.name,
            "versions": [spec.version],
            "platform": PLATFORM,
            "inputs": tensor_metadata(spec.client_inputs),
            "outputs": tensor_metadata(spec.client_outputs),
            "properties": {
                "digest": bundle.digest,
                "policy_digest": engine.digests.of(generation),
                "description": spec.description,
                "batchable": "true" if spec.coalescible else "false",
                "batch_safety": str(spec.batch_safety.verdict) if spec.batch_safety is not None else "",
                "batching_reason": spec.batching_reason,
            },
        }

    ready: dict[str, Any] = {
        "summary": "Whether the model serves",
        "response_model": ModelReady,
        "responses": {503: {"model": ModelReady | Error, "description": "It does not."}},
    }

    @routes.get("/v2/models/{model}/ready", **ready)
    @routes.get("/v2/models/{model}/versions/{version}/ready", **ready)
    async def model_ready(model: str, version: Version) -> Response:
        entry = engine.registry.find_public(model)
        serves = entry.state is ModelState.READY and entry.generation is not None
        if serves:
            engine.check_serves(model, version)  # such as without weights on the device, or a model that it calls
        return JSONResponse({"name": model, "ready": serves}, 200 if serves else 503)
