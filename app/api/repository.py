"""The V2 model repository API."""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel

from app.domain.errors import Unsupported
from app.engine.engine import Engine
from app.runtime.registry import ModelState


class IndexRequest(BaseModel):
    """Body of `POST /v2/repository/index`; may be absent."""

    ready: bool = False


def router(engine: Engine, explicit: bool) -> APIRouter:
    """The routes of this module; load and unload are legal in `explicit` mode only."""
    routes = APIRouter(tags=["V2 repository"])

    @routes.post("/v2/repository/index", summary="Every model that is known, and its state")
    async def index(body: IndexRequest | None = None) -> list[dict[str, Any]]:
        ready_only = body is not None and body.ready
        return [
            {
                "name": name,
                **({} if entry.generation is None else {"version": entry.generation.bundle.spec.version}),
                "state": str(entry.state),
                "reason": entry.reason,
            }
            for name, entry in sorted(engine.registry.entries.items())
            if entry.state is ModelState.READY or not ready_only
        ]

    @routes.post("/v2/repository/models/{model}/load", summary="Load or reload a model")
    async def load(model: str) -> Response:
        _require(explicit)
        await engine.load_model(model)
        return Response(status_code=200)

    @routes.post("/v2/repository/models/{model}/unload", summary="Unload a model")
    async def unload(model: str) -> Response:
        _require(explicit)
        await engine.unload_model(model)
        return Response(status_code=200)

    return routes


def _require(explicit: bool) -> None:
    if not explicit:
        raise Unsupported("explicit load and unload need model_control_mode=explicit")
