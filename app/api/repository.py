"""The V2 model repository API."""

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.bodies import documented, read_object
from app.api.schemas import IndexEntry
from app.domain.errors import InvalidRequest, Unsupported
from app.engine.engine import Engine
from app.runtime.registry import ModelState

_INDEX = documented({"type": "object", "properties": {"ready": {"type": "boolean", "default": False}}}, required=False)

_LOAD = documented(
    {
        "type": "object",
        "properties": {"parameters": {"type": "object", "maxProperties": 0}},
        "description": "Parameters are refused: what is served is what the bundle says.",
    },
    required=False,
)

_UNLOAD = documented({"type": "object"}, required=False)


def router(engine: Engine, explicit: bool) -> APIRouter:
    """The routes of this module; load and unload are legal in `explicit` mode only."""
    routes = APIRouter(tags=["V2 repository"])

    @routes.post(
        "/v2/repository/index",
        summary="Every model that is known, and its state",
        response_model=list[IndexEntry],
        response_model_exclude_unset=True,
        openapi_extra=_INDEX,
    )
    async def index(request: Request) -> list[dict[str, Any]]:
        ready_only = (await read_object(request)).get("ready", False)
        if not isinstance(ready_only, bool):
            raise InvalidRequest(f"'ready' must be true or false, got {ready_only!r:.100}")
        return [
            {
                "name": name,
                **({} if entry.generation is None else {"version": entry.generation.bundle.spec.version}),
                "state": str(entry.state),
                "reason": entry.reason,
            }
            for name, entry in sorted(engine.registry.public.items())
            if entry.state is ModelState.READY or not ready_only
        ]

    @routes.post(
        "/v2/repository/models/{model}/load",
        summary="Load or reload a model",
        response_class=Response,
        openapi_extra=_LOAD,
    )
    async def load(model: str, request: Request) -> Response:
        _require(explicit)
        _refuse_parameters(await read_object(request))
        await engine.load_model(model)
        return Response(status_code=200)

    @routes.post(
        "/v2/repository/models/{model}/unload", summary="Unload a model", response_class=Response, openapi_extra=_UNLOAD
    )
    async def unload(model: str, request: Request) -> Response:
        _require(explicit)
        await read_object(request)  # `unload_dependents` asks for nothing here: a meta model keeps what it calls
        await engine.unload_model(model)
        return Response(status_code=200)

    return routes


def _require(explicit: bool) -> None:
    if not explicit:
        raise Unsupported(
            "explicit load and unload need model_control_mode=explicit; in this one add or remove its directory"
        )


def _refuse_parameters(body: dict[str, Any]) -> None:
    parameters = body.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"'parameters' must be an object, got {parameters!r:.100}")
    if parameters:
        # Silence would serve another model than the one that was described.
        raise InvalidRequest(
            f"load parameters are not supported, got {', '.join(map(str, parameters)):.100}: change the bundle"
        )
