"""The logging extension: what is logged, read and changed while the server runs."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from app.api.bodies import documented, read_object
from app.api.schemas import LogSettings
from app.domain.errors import InvalidRequest

logger = logging.getLogger(__name__)

_FLAGS: Mapping[int, str] = {logging.ERROR: "log_error", logging.WARNING: "log_warning", logging.INFO: "log_info"}

_VERBOSE = "log_verbose_level"

#: An unsigned number of 32 bits, as Triton's is.
MOST_VERBOSE = 2**32 - 1

_BODY = {
    "type": "object",
    "properties": {
        **{name: {"type": "boolean"} for name in _FLAGS.values()},
        _VERBOSE: {"type": "integer", "minimum": 0, "maximum": MOST_VERBOSE},
    },
    "additionalProperties": False,
}


class Loudness(logging.Filter):
    """The settings in force; as a filter of the handlers, so that the levels are independent of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {
            "log_file": "",
            **dict.fromkeys(_FLAGS.values(), True),
            _VERBOSE: 0,
            "log_format": "default",
        }

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is wanted (any thread)."""
        name = next((name for level, name in _FLAGS.items() if record.levelno >= level), None)
        return bool(self.values[_VERBOSE] > 0 if name is None else self.values[name])

    def change(self, wanted: Mapping[str, Any]) -> None:
        """Obey. Raises `InvalidRequest` naming the setting, and then changes nothing."""
        for name, value in wanted.items():
            _check(name, value)
        if wanted:
            logger.info(
                "log settings: %s", ", ".join(f"{name} {self.values[name]} → {wanted[name]}" for name in wanted)
            )
        self.values = {**self.values, **wanted}
        for handler in logging.getLogger().handlers:
            handler.addFilter(self)
        logging.getLogger("app").setLevel(logging.DEBUG if self.values[_VERBOSE] else logging.NOTSET)


def router(loudness: Loudness) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["V2"])

    @routes.get("/v2/logging", summary="Log settings", response_model=LogSettings)
    async def read() -> dict[str, Any]:
        return loudness.values

    @routes.post(
        "/v2/logging",
        summary="Change log settings",
        response_model=LogSettings,
        openapi_extra=documented(_BODY, required=False),
    )
    async def write(request: Request) -> dict[str, Any]:
        loudness.change(await read_object(request))
        return loudness.values

    return routes


def _check(name: str, value: object) -> None:
    if name == _VERBOSE:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_VERBOSE:
            raise InvalidRequest(f"{name!r} must be a whole number from 0 to {MOST_VERBOSE}, got {value!r:.100}")
    elif name not in _FLAGS.values():
        known = ", ".join([*_FLAGS.values(), _VERBOSE])
        raise InvalidRequest(f"log setting {name!r:.100} cannot be changed while the server runs; these can: {known}")
    elif not isinstance(value, bool):
        raise InvalidRequest(f"{name!r} must be true or false, got {value!r:.100}")
