"""The request headers that the inference route reads."""

import os
from dataclasses import dataclass
from math import inf

from app.api.compression import DECODERS, choose
from app.api.exchange import HeaderList
from app.domain.errors import InvalidRequest, UnsupportedEncoding

_READ = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"content-encoding",
        b"inference-header-content-length",
        b"x-request-id",
        b"x-request-timeout-ms",
        b"x-envoy-expected-rq-timeout-ms",
    }
)

#: Timeouts above this many milliseconds (a century) are as good as none.
_FOREVER_MS = 3.2e12

#: Of a longer request id the rest is cut off.
MAX_REQUEST_ID = 256


@dataclass(slots=True)
class InferHeaders:
    """The values of interest. `timeout` is in seconds, infinite where there is none.

    `content_encoding` is the coding of a compressed body, a key of `DECODERS`; `coding` that for the answer.
    """

    accept_encoding: bytes | None = None
    authorization: bytes | None = None
    coding: str | None = None
    content_encoding: str | None = None
    header_length: str | None = None
    request_id: bytes | None = None
    timeout: float = inf


def read_headers(headers: HeaderList) -> InferHeaders:
    """Pick and check the headers. Raises `InvalidRequest` or `UnsupportedEncoding`."""
    found = InferHeaders()
    for name, value in headers:
        if name in _READ:
            _take(found, name, value)
    if found.accept_encoding is not None:
        found.coding = choose(found.accept_encoding)
    return found


def _take(found: InferHeaders, name: bytes, value: bytes) -> None:
    if name == b"inference-header-content-length":
        if found.header_length is not None:
            raise InvalidRequest("header Inference-Header-Content-Length is given twice")
        found.header_length = value.decode("latin-1")
    elif name == b"authorization":
        found.authorization = value
    elif name == b"accept-encoding":
        found.accept_encoding = value if found.accept_encoding is None else found.accept_encoding + b"," + value
    elif name == b"x-request-id":
        found.request_id = value[:MAX_REQUEST_ID]
    elif name == b"content-encoding":
        found.content_encoding = read_encoding(value, found.content_encoding)
    else:
        found.timeout = min(found.timeout, parse_timeout(name, value))


def read_encoding(value: bytes, before: str | None = None) -> str | None:
    """The coding of a compressed body, None for a plain one. Raises `UnsupportedEncoding`, also for a second coding."""
    coding = value.decode("latin-1").strip().lower()
    if coding in ("", "identity"):
        return before
    if coding not in DECODERS or before is not None:
        raise UnsupportedEncoding(f"content encoding {coding!r:.100} is not supported: send gzip, deflate or none")
    return coding


def request_id_of(headers: HeaderList) -> bytes:
    """The request id that the client sent, cut to `MAX_REQUEST_ID`, or a new one."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given[:MAX_REQUEST_ID] or os.urandom(8).hex().encode()


def parse_timeout(name: bytes, value: bytes) -> float:
    """A timeout header in whole milliseconds as seconds; 0 means none. Raises `InvalidRequest`."""
    text = value.strip()
    if not text.isdigit():
        raise InvalidRequest(
            f"header {name.decode('latin-1')}: expected whole milliseconds, 0 for none, got {value.decode('latin-1')!r}"
        )
    milliseconds = float(text)
    return milliseconds / 1000 if 0 < milliseconds <= _FOREVER_MS else inf
