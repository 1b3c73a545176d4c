"""Reads `/status` of a server over HTTP, like any other client."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.domain.errors import ModelUnavailable, ServingError, Unauthorized

#: Seconds. A server that is alive answers within one turn of its loop.
TIMEOUT_SECONDS = 5.0

Status = Mapping[str, Any]


def address(url: str) -> str:
    """The address of a server as somebody types it: by HTTP where it does not say how, without a slash at its end."""
    return (url if "://" in url else f"http://{url}").rstrip("/")


def fetch(url: str, tokens: Iterable[Callable[[], str | None]]) -> Status:
    """The status of the server at `url`. A token is read, and sent, only when the server asks for one.

    Raises `ModelUnavailable` when nobody answers, `Unauthorized` when no token opens the door.
    """
    status = _ask(url, None)
    for token in tokens:
        if status is None and (given := token()):
            status = _ask(url, given)
    if status is None:
        raise Unauthorized(f"{url} asks for a token: set INFERENCE_SERVER_ENDPOINTS_API_TOKEN to it")
    return status


def _ask(url: str, token: str | None) -> Status | None:
    """The status; None where a token is asked for, or another one."""
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token.strip()}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=TIMEOUT_SECONDS) as answer:
            status: Status = json.load(answer)
            return status
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            return None
        raise ServingError(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ModelUnavailable(f"no server answers at {url}: {reason}") from error
