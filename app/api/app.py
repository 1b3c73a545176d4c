"""The FastAPI application: routers, the ASGI door, error handlers, the gate."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.api import (
    admin,
    configuration,
    console,
    log_settings,
    metadata,
    metrics,
    openapi,
    repository,
    shared_memory,
    statistics,
)
from app.api.access import Access
from app.api.asgi_door import asgi_infer
from app.api.exchange import InferenceHandler
from app.api.failures import handle_errors
from app.api.gate import AccessGate
from app.api.journal import Journal
from app.api.schemas import Root
from app.engine.engine import Engine
from app.engine.readiness import Readiness
from app.engine.status_reader import StatusReader
from app.runtime.shared_memory import Regions

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]

_INFER = "/v2/models/{model}/infer"
_INFER_VERSION = "/v2/models/{model}/versions/{version}/infer"


class _Door(Response):
    """Answers through the inference handler instead of with a body of its own."""

    def __init__(self, handler: InferenceHandler) -> None:
        super().__init__()
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi_infer(self._handler, scope, receive, send)


def create(
    engine: Engine,
    handler: InferenceHandler,
    access: Access,
    readiness: Readiness,
    status: StatusReader,
    journal: Journal,
    worker: str,
    *,
    settings: admin.Settings,
    version: str,
    explicit: bool,
    lifespan: Lifespan,
    regions: Regions | None = None,
) -> FastAPI:
    """Wire the application. Nothing here knows how the parts were built. `regions` None offers no shared memory."""
    app = FastAPIOffline(
        redoc_url=None,
        title=metadata.SERVER_NAME,
        version=version,
        lifespan=lifespan,
        redirect_slashes=False,
        swagger_ui_parameters={"validatorUrl": None},  # no service elsewhere is asked what it thinks of the document
    )
    app.include_router(statistics.router(engine, status))
    app.include_router(configuration.router(engine))
    app.include_router(metadata.router(engine, readiness, version, shared_memory=regions is not None))
    app.include_router(log_settings.router(log_settings.Loudness()))
    app.include_router(repository.router(engine, explicit))
    if regions is not None:
        app.include_router(shared_memory.router(regions))
    app.include_router(admin.router(engine, status, journal, settings))
    app.include_router(console.router())

    @app.get("/", tags=["V2"], summary="What this is", response_model=Root)
    async def root() -> dict[str, str]:
        links = {"console": "/console", "docs": "/docs", "status": "/status", "v2": "/v2"}
        return {"name": metadata.SERVER_NAME, "version": version, **links}

    @app.post(_INFER, tags=["V2"], summary="Inference", openapi_extra=openapi.INFERENCE)
    @app.post(_INFER_VERSION, tags=["V2"], summary="Inference", openapi_extra=openapi.INFERENCE)
    async def infer() -> Response:
        return _Door(handler)

    _describe_elsewhere(app, engine)
    metrics.install(app, status, journal, worker)
    app.openapi = lambda: openapi.document(app, access)  # type: ignore[method-assign] # as FastAPI has it extended
    app.add_middleware(AccessGate, access=access, handler=handler, journal=journal, shared_memory=regions is not None)
    handle_errors(app)
    return app


def _describe_elsewhere(app: FastAPI, engine: Engine) -> None:
    """Have the OpenAPI document made by a hook thread, when it is first asked for: it takes half a second."""
    at = next(at for at, route in enumerate(app.routes) if isinstance(route, Route) and route.path == app.openapi_url)
    made = app.routes[at]
    assert isinstance(made, Route)
    answer = made.endpoint

    async def describe(request: Request) -> Response:
        if app.openapi_schema is None:
            await engine.offload(app.openapi)
        response: Response = await answer(request)
        return response

    app.routes[at] = Route(made.path, describe, include_in_schema=False)
