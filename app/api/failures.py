"""What routes answer when something goes wrong: always `{"error": message, "code": reason}`."""

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.api.errors import error_body, error_reply
from app.api.paths import methods
from app.domain.errors import ServingError

logger = logging.getLogger(__name__)

CODES = {404: "not_found", 405: "method_not_allowed"}


def handle_errors(app: FastAPI) -> None:
    """Give every failure of the application's routes the one form; the gate gives requests their ids."""

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
