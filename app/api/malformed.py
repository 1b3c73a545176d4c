"""The answers that no handler gives: to what is no complete HTTP request, or to what broke the door itself.

The connection ends with them.
"""

from dataclasses import replace

from app.api.errors import error_body
from app.api.exchange import HeaderList, Reply
from app.api.headers import request_id_of
from app.domain.errors import DeadlineExceeded

#: Bytes that are not body (a head, chunk extensions, trailers) that a client may send in a row.
MAX_HEAD_BYTES = 65_536


def identified(reply: Reply, headers: HeaderList) -> Reply:
    """`reply` with a request id of its own: that among `headers`, as far as they came, or a new one."""
    return replace(reply, fresh=(b"x-request-id",), values=(request_id_of(headers),))


def _reply(status: int, code: str, message: str) -> Reply:
    return Reply(status, ((b"content-type", b"application/json"),), [error_body(message, code)])


MALFORMED = _reply(400, "malformed_request", "this is not an HTTP/1.1 request")
CHUNKED_UPGRADE = _reply(400, "malformed_request", "a chunked body cannot follow an offer to upgrade")
LATE = DeadlineExceeded("the deadline passed while the request arrived")
BROKEN = _reply(500, "internal", "internal error")
TOO_SLOW = _reply(408, "request_timeout", "the rest of the request did not come in time")
TOO_LARGE = _reply(431, "headers_too_large", f"the request has more than {MAX_HEAD_BYTES} bytes of headers")
