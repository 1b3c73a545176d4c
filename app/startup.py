"""What a server looks at and takes hold of before it serves: its certificate, files, its port, then its admin token."""

import logging
import resource
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from pydantic import SecretStr

from app.api.access import Access, Door, make_admin_token
from app.domain.errors import ServingError
from app.settings import PREFIX, Settings, SettingsError

logger = logging.getLogger(__name__)


def listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises `SettingsError` where the address is not to be had.

    Taken before anything that belongs to whoever has the port: a second server must not touch the token of the first.
    """
    host, port = settings.endpoints.host, settings.endpoints.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # behind which the address stands once more
        raise SettingsError(f"{PREFIX}ENDPOINTS_PORT={port}: cannot listen on {host}: {reason}") from error
    # With the protocol told: without it asyncio does not turn Nagle's algorithm off.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())


def allow_open_files() -> None:
    """Raise this process's soft limit of open files to the hard one, which is often 500 times as high.

    Every connection is an open file, and above the limit libuv resets new ones without a word. Nothing here needs it
    low: `select`, for whose sake it is, is used on standard input alone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS sets a limit of its own to what it calls unlimited
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_certificate(settings: Settings) -> None:
    """Raise `SettingsError` where TLS is asked for and certificate and key cannot be used."""
    certificate, key = settings.endpoints.ssl_certfile, settings.endpoints.ssl_keyfile
    if not certificate:
        return
    for name, file in (("SSL_CERTFILE", certificate), ("SSL_KEYFILE", key)):
        try:
            if file:
                Path(file).read_bytes()
        except OSError as error:
            raise SettingsError(f"{PREFIX}ENDPOINTS_{name}={file}: cannot be read ({error.strerror})") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise SettingsError(
            f"{PREFIX}ENDPOINTS_SSL_CERTFILE={certificate}: no PEM certificate with its key"
            f"{'' if key is None else f' in {key}'} ({error})"
        ) from error


def admin_token_file(settings: Settings) -> Path:
    """Where a server with these settings keeps the admin token that it made."""
    return settings.cache_dir / f"admin-token-{settings.endpoints.port}"


def admin_token(settings: Settings) -> str:
    """That of the settings, else one that is made and kept in a file. Raises `SettingsError` where it cannot be."""
    configured = secret(settings.endpoints.admin_token)
    if configured is not None:
        return configured
    path = admin_token_file(settings)
    try:
        token = make_admin_token(path)
    except OSError as error:
        raise SettingsError(
            f"{PREFIX}CACHE_DIR={settings.cache_dir}: cannot be written ({error.strerror}): name a directory that this "
            f"user may write"
        ) from error
    logger.info("admin token: %s", path)
    return token


def forget_admin_token(settings: Settings, access: Access) -> None:
    """Remove the file of the token that was made, unless it holds that of a later server by now."""
    if settings.endpoints.admin_token is not None:
        return
    path = admin_token_file(settings)
    with suppress(OSError, ServingError):
        access.check(Door.ADMIN, b"Bearer " + path.read_bytes())
        path.unlink()


def secret(value: SecretStr | None) -> str | None:
    """What a secret setting holds."""
    return None if value is None else value.get_secret_value()
