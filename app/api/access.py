"""Who may call what: one table from paths to doors, and tokens compared in constant time."""

import os
import secrets
from enum import Enum
from pathlib import Path

from app.domain.errors import Forbidden, Unauthorized


class Door(Enum):
    """What a route asks of its caller."""

    OPEN = "open"
    API = "api"
    ADMIN = "admin"


#: Paths that a probe or a scraper reads without a token.
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready", "/metrics"})

#: Prefixes (whole segments) that are the same for everyone and tell nothing: the console's page cannot send a token, so
#: it asks its reader for one and sends that to `/status`.
OPEN_PREFIXES = ("/console",)

#: Prefixes (whole segments) behind the admin token; everything else asks for the API token.
ADMIN_PREFIXES = ("/admin", "/v2/repository/models")


#: Paths, and all below them, that anyone with the API token may read, and only the admin may write.
ADMIN_WRITES = ("/v2/logging", "/v2/systemsharedmemory")


def door_of(path: str, method: str = "GET", *, shared_memory: bool = True) -> Door:
    """The door of a decoded path; slashes at the end and doubled ones open no other door.

    Without `shared_memory` its routes are unknown ones, for which nobody needs more than for any other.
    """
    plain = "/" + "/".join(segment for segment in path.split("/") if segment)
    if plain in OPEN_PATHS or _under(plain, OPEN_PREFIXES):
        return Door.OPEN
    if _under(plain, ADMIN_PREFIXES):
        return Door.ADMIN
    writes = ADMIN_WRITES if shared_memory else ADMIN_WRITES[:1]
    if _under(plain, writes) and method not in ("GET", "HEAD"):
        return Door.ADMIN
    segments = plain.split("/")
    if segments[1:3] == ["v2", "repository"] and segments[-1] in ("load", "unload"):
        return Door.ADMIN
    return Door.API


def _under(plain: str, prefixes: tuple[str, ...]) -> bool:
    return any(plain == prefix or plain.startswith(prefix + "/") for prefix in prefixes)


class Access:
    """Checks bearer tokens. `api_token` None leaves the API door open; the admin door never is."""

    def __init__(self, api_token: str | None, admin_token: str) -> None:
        # A secret read from a file often ends with a line break, which no header can carry.
        self._api = None if api_token is None else api_token.strip().encode()
        self._admin = admin_token.strip().encode()

    @property
    def api_is_open(self) -> bool:
        """Whether inference needs no token."""
        return self._api is None

    def check(self, door: Door, authorization: bytes | None) -> None:
        """Raise `Unauthorized` without, `Forbidden` with a wrong token. The admin token opens the API door too."""
        if door is Door.OPEN or (door is Door.API and self._api is None):
            return
        scheme, _, token = (authorization or b"").partition(b" ")
        given = token.strip()
        if scheme.lower() != b"bearer" or not given:
            raise Unauthorized(f"this route needs the {door.value} token as a bearer token")
        opens = secrets.compare_digest(given, self._admin)
        if door is Door.API and self._api is not None:
            opens |= secrets.compare_digest(given, self._api)
        if not opens:
            raise Forbidden(f"the token is not the {door.value} token")


def make_admin_token(path: Path) -> str:
    """A new admin token, kept in a file that only its owner can read, for as long as the server runs."""
    token = secrets.token_urlsafe(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return token
