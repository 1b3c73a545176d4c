"""The FastAPI application: routers, the ASGI door, error handlers, the gate."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
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
from app.api.errors import error_body, error_reply
from app.api.exchange import InferenceHandler
from app.api.gate import AccessGate
from app.api.journal import Journal
from app.api.paths import methods
from app.api.schemas import Root
from app.domain.errors import ServingError
from app.engine.engine import Engine
from app.engine.readiness import Readiness
from app.engine.status_reader import StatusReader
from app.runtime.shared_memory import Regions

logger = logging.getLogger(__name__)

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]

CODES = {404: "not_found", 405: "method_not_allowed"}

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
    app.openapi = lambda: openapi.document(app, access)  # type: ignore[method-assign]
    app.add_middleware(AccessGate, access=access, handler=handler, journal=journal, shared_memory=regions is not None)
    _handle_errors(app)
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


def _handle_errors(app: FastAPI) -> None:
    def answer(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
        return Response(error_body(message, code), status, headers, "application/json")

    @app.exception_handler(ServingError)
    async def serving_error(request: Request, error: ServingError) -> Response:
        reply = error_reply(error, request.state.request_id)
        headers = {name.decode(): value.decode() for name, value in reply.headers}
        return Response(b"".join(reply.body), reply.status, headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        code = CODES.get(error.status_code, "invalid_request")
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(methods(app, request.scope)))
        return answer(error.status_code, message, code, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(400, f"{where}: {first['msg']}", "invalid_request")

    @app.exception_handler(Exception)
    async def crash(request: Request, error: Exception) -> Response:
        # Outside of the gate. The server logs the traceback.
        request_id = request.state.request_id
        logger.error("request %s failed: %s", request_id, type(error).__name__)
        return answer(500, f"internal error (request {request_id})", "internal", {"x-request-id": request_id})
