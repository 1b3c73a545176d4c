"""The request headers that the inference route reads."""

from dataclasses import dataclass
from math import inf

from app.api.exchange import HeaderList
from app.domain.errors import InvalidRequest, UnsupportedEncoding

_READ = frozenset(
    {
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
    """The values of interest. `timeout` is in seconds, infinite where there is none."""

    authorization: bytes | None = None
    header_length: str | None = None
    request_id: bytes | None = None
    timeout: float = inf


def read_headers(headers: HeaderList) -> InferHeaders:
    """Pick and check the headers. Raises `InvalidRequest` or `UnsupportedEncoding`."""
    found = InferHeaders()
    for name, value in headers:
        if name in _READ:
            _take(found, name, value)
    return found


def _take(found: InferHeaders, name: bytes, value: bytes) -> None:
    if name == b"inference-header-content-length":
        if found.header_length is not None:
            raise InvalidRequest("header Inference-Header-Content-Length is given twice")
        found.header_length = value.decode("latin-1")
    elif name == b"authorization":
        found.authorization = value
    elif name == b"x-request-id":
        found.request_id = value[:MAX_REQUEST_ID]
    elif name != b"content-encoding":
        found.timeout = min(found.timeout, parse_timeout(name, value))
    elif value.strip().lower() not in (b"", b"identity"):
        raise UnsupportedEncoding(f"content encoding {value.decode('latin-1')!r} is not supported")


def parse_timeout(name: bytes, value: bytes) -> float:
    """A timeout header in whole milliseconds as seconds; 0 means none. Raises `InvalidRequest`."""
    text = value.strip()
    if not text.isdigit():
        raise InvalidRequest(
            f"header {name.decode('latin-1')}: expected whole milliseconds, 0 for none, got {value.decode('latin-1')!r}"
        )
    milliseconds = float(text)
    return milliseconds / 1000 if 0 < milliseconds <= _FOREVER_MS else inf
