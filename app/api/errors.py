"""The one table from errors to HTTP, and the one form of an error body."""

from collections.abc import Mapping

import orjson

from app.api.exchange import Reply
from app.domain import errors

HTTP_STATUS: Mapping[type[errors.ServingError], int] = {
    errors.ServingError: 500,
    errors.InvalidRequest: 400,
    errors.ShapeNotCompiled: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.ModelNotFound: 404,
    errors.RegionNotFound: 404,
    errors.Unsupported: 409,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedEncoding: 415,
    errors.BundleError: 422,
    errors.QueueFull: 429,
    errors.TooManyRequests: 429,
    errors.Cancelled: 499,
    errors.HookFailed: 500,
    errors.ExecutionFailed: 500,
    errors.ModelUnavailable: 503,
    errors.OutOfMemory: 503,
    errors.ShuttingDown: 503,
    errors.DeadlineExceeded: 504,
    errors.DeadlineInfeasible: 504,
}

#: Headers that tell a client what to do next.
ADVICE: Mapping[type[errors.ServingError], tuple[tuple[bytes, bytes], ...]] = {
    errors.QueueFull: ((b"retry-after", b"1"),),
    errors.TooManyRequests: ((b"retry-after", b"1"),),
    errors.ModelUnavailable: ((b"retry-after", b"1"),),
    errors.ShuttingDown: ((b"connection", b"close"),),
    errors.Unauthorized: ((b"www-authenticate", b"Bearer"),),
    errors.UnsupportedEncoding: ((b"accept-encoding", b"gzip, deflate"),),
}

_JSON = (b"content-type", b"application/json")

#: Made once, so that a door knows the lines again that it made of them.
_HEADERS = {kind: (_JSON, *ADVICE.get(kind, ())) for kind in HTTP_STATUS}


def error_body(message: str, code: str) -> bytes:
    """The body of every answer that is not 2xx."""
    return orjson.dumps({"error": message, "code": code})


def error_reply(error: errors.ServingError, request_id: str | None = None) -> Reply:
    """The answer for an error; a 500 names the request, so that its log line can be found."""
    status = HTTP_STATUS[type(error)]
    message = error.message if status != 500 or request_id is None else f"{error.message} (request {request_id})"
    return Reply(status, _HEADERS[type(error)], [error_body(message, error.code)])
