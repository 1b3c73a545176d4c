"""Admin commands and status."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from app.api.bodies import documented, read_object
from app.api.journal import Journal
from app.domain.config import ModelPolicy, Residency
from app.domain.errors import InvalidRequest
from app.engine.engine import Engine
from app.engine.status import NodeStatus
from app.engine.status_reader import StatusReader
from app.runtime.recent import REMEMBERED

#: name → its value and which source won; secrets hidden.
Settings = Mapping[str, Mapping[str, Any]]

B = TypeVar("B", bound=BaseModel)


class SetPolicy(ModelPolicy):
    """Body of `POST /admin/set_policy`: the model, and the fields of its policy that change."""

    model: str
    """Name of the model."""

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that were sent, by name."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "model"}


class SetResidency(BaseModel):
    """Body of `POST /admin/set_residency`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: str
    """Name of the model."""
    residency: Residency
    """Where its weights go: `device`; or off it, `system` keeping them in host memory and `unpinned` not."""


class Compact(BaseModel):
    """Body of `POST /admin/compact`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    reload: list[str] = []
    """Models whose weights are to be on the device afterwards."""


class Prefetch(BaseModel):
    """Body of `POST /admin/prefetch`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    models: list[str]
    """Models that will be asked for soon."""


_SCHEMA = SetPolicy.model_json_schema(ref_template="#/components/schemas/{model}")
_BODY = {name: value for name, value in _SCHEMA.items() if name != "$defs"}


def _read(kind: type[B], body: dict[str, Any]) -> B:
    try:
        # As JSON and strict: true is no weight, and "2" is not 2.
        return kind.model_validate_json(orjson.dumps(body), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise InvalidRequest(f"no field {field!r:.100}: known are {', '.join(kind.model_fields)}") from None
        raise InvalidRequest(f"field {field!r}: {first['msg']}, got {first['input']!r:.100}") from None


@dataclass(frozen=True, slots=True)
class AdminStatus(NodeStatus):
    """The node, and the settings of the process."""

    settings: Settings


class Recent(BaseModel):
    """Answer of `GET /admin/recent`: facts of the latest requests and dispatches, oldest first."""

    requests: list[dict[str, Any]]
    dispatches: list[dict[str, Any]]


def router(engine: Engine, status: StatusReader, journal: Journal, settings: Settings) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["admin"])
    _commands(routes, engine)

    @routes.get("/status", summary="The node and its models", response_model=NodeStatus)
    async def node_status() -> Response:
        return _json(await status.read_in_turns())

    @routes.get("/admin/status", summary="The node, its models and its settings", response_model=AdminStatus)
    async def admin_status() -> Response:
        node = await status.read_in_turns()
        told = {each.name: getattr(node, each.name) for each in fields(NodeStatus)}
        return _json(AdminStatus(**told, settings=settings))

    @routes.get("/admin/recent", summary="The latest requests and dispatches", response_model=Recent)
    async def recent(limit: Annotated[int, Query(ge=1, le=REMEMBERED)] = 1000) -> Response:
        return await asyncio.to_thread(lambda: _json(journal.latest(limit)))

    return routes


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")


def _commands(routes: APIRouter, engine: Engine) -> None:
    @routes.post(
        "/admin/set_policy",
        summary="Change a model's policy before the next dispatch",
        openapi_extra=documented(_BODY, required=True),
    )
    async def set_policy(request: Request) -> ModelPolicy:
        wanted = _read(SetPolicy, await read_object(request))
        return await engine.set_policy(wanted.model, lambda policy: policy.model_copy(update=wanted.changes))

    @routes.post(
        "/admin/set_residency",
        summary="Move a model's weights now, in explicit mode",
        openapi_extra=documented({"$ref": "#/components/schemas/SetResidency"}, required=True),  # its answer too
    )
    async def set_residency(request: Request) -> SetResidency:
        wanted = _read(SetResidency, await read_object(request))
        await engine.set_residency(wanted.model, wanted.residency)
        return wanted

    @routes.post(
        "/admin/compact",
        summary="Free unpinned weights, shrink the arenas, load the listed models again",
        openapi_extra=documented(Compact.model_json_schema(), required=False),
    )
    async def compact(request: Request) -> dict[str, int]:
        wanted = _read(Compact, await read_object(request))
        return (await engine.compact(wanted.reload))._asdict()

    @routes.post(
        "/admin/prefetch",
        summary="Bring the weights of models that will be asked for soon, in place of unused ones",
        openapi_extra=documented(Prefetch.model_json_schema(), required=True),
    )
    async def prefetch(request: Request) -> Prefetch:
        wanted = _read(Prefetch, await read_object(request))
        await engine.prefetch(wanted.models)
        return wanted
