"""Admin commands and status."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from app.api.bodies import documented, read_object
from app.domain.config import ModelPolicy
from app.domain.errors import InvalidRequest
from app.engine.engine import Engine
from app.engine.status import NodeStatus, StatusReader


class SetPolicy(ModelPolicy):
    """Body of `POST /admin/set_policy`: the model, and the fields of its policy that change."""

    model: str
    """Name of the model."""

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that were sent, by name."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "model"}


_SCHEMA = SetPolicy.model_json_schema(ref_template="#/components/schemas/{model}")
_BODY = {name: value for name, value in _SCHEMA.items() if name != "$defs"}


def _read(body: dict[str, Any]) -> SetPolicy:
    try:
        # As JSON and strict: true is no weight, and "2" is not 2.
        return SetPolicy.model_validate_json(orjson.dumps(body), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        known = f"; known are: {', '.join(SetPolicy.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise InvalidRequest(f"policy field {field!r}: {first['msg']}{known}, got {first['input']!r:.100}") from None


def router(engine: Engine, status: StatusReader) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["admin"])

    @routes.get("/status", summary="The node and its models", response_model=NodeStatus)
    @routes.get("/admin/status", summary="The node, its models and its settings", response_model=NodeStatus)
    async def node_status() -> Response:
        return Response(orjson.dumps(status.read(), option=orjson.OPT_NON_STR_KEYS), media_type="application/json")

    @routes.post(
        "/admin/set_policy",
        summary="Change a model's policy before the next dispatch",
        openapi_extra=documented(_BODY, required=True),
    )
    async def set_policy(request: Request) -> ModelPolicy:
        wanted = _read(await read_object(request))
        return await engine.set_policy(wanted.model, lambda policy: policy.model_copy(update=wanted.changes))

    return routes
