"""Every error has a status, and every body has the same two members."""

import orjson
import pytest

from app.api.errors import ADVICE, HTTP_STATUS, error_reply
from app.domain import errors

STATUS = {
    400: {"InvalidRequest", "ShapeNotCompiled"},
    401: {"Unauthorized"},
    403: {"Forbidden"},
    404: {"ModelNotFound", "RegionNotFound"},
    409: {"Unsupported"},
    413: {"PayloadTooLarge"},
    415: {"UnsupportedEncoding"},
    422: {"BundleError"},
    429: {"QueueFull", "TooManyRequests"},
    499: {"Cancelled"},
    500: {"ServingError", "HookFailed", "ExecutionFailed"},
    503: {"ModelUnavailable", "ShuttingDown", "OutOfMemory"},
    504: {"DeadlineExceeded", "DeadlineInfeasible"},
}


def every(error=errors.ServingError):
    return [error, *(each for child in error.__subclasses__() for each in every(child))]


def test_every_error_has_its_documented_status():
    table = {error.__name__: status for error, status in HTTP_STATUS.items()}
    assert table == {name: status for status, names in STATUS.items() for name in names}
    assert set(HTTP_STATUS) == set(every())
    assert set(ADVICE) <= set(HTTP_STATUS)


@pytest.mark.parametrize("error", every())
@pytest.mark.parametrize("request_id", [None, "an-id"])
def test_every_reply_has_an_error_and_a_code(error, request_id):
    reply = error_reply(error('what "failed"\n', reason="narrow"), request_id)
    body = orjson.loads(b"".join(reply.body))
    assert set(body) == {"error", "code"}
    assert body["code"] == "narrow"
    assert body["error"].startswith('what "failed"')
    assert dict(reply.headers)[b"content-type"] == b"application/json"
    assert reply.status == HTTP_STATUS[error]


def test_a_500_names_the_request():
    assert b"(request an-id)" in b"".join(error_reply(errors.ExecutionFailed("boom"), "an-id").body)
    assert b"an-id" not in b"".join(error_reply(errors.InvalidRequest("boom"), "an-id").body)


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (errors.QueueFull, (b"retry-after", b"1")),
        (errors.TooManyRequests, (b"retry-after", b"1")),
        (errors.ModelUnavailable, (b"retry-after", b"1")),
        (errors.ShuttingDown, (b"connection", b"close")),
        (errors.Unauthorized, (b"www-authenticate", b"Bearer")),
    ],
)
def test_a_refusal_says_what_to_do_next(error, header):
    assert header in error_reply(error("no")).headers
