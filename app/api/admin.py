"""Admin commands and status."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from app.domain.config import ModelPolicy
from app.domain.errors import InvalidRequest
from app.engine.engine import Engine
from app.engine.status import NodeStatus, StatusReader


class SetPolicy(BaseModel):
    """Body of `POST /admin/set_policy`: the model, and the fields of its policy that change."""

    model_config = ConfigDict(extra="allow")

    model: str


def _merged(policy: ModelPolicy, changes: Mapping[str, Any]) -> ModelPolicy:
    try:
        return ModelPolicy.model_validate({**policy.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"policy field {field!r}: {first['msg']}, got {first.get('input')!r}") from None


def router(engine: Engine, status: StatusReader) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(tags=["admin"])

    @routes.get("/status", summary="The node and its models", response_model=NodeStatus)
    @routes.get("/admin/status", summary="The node, its models and its settings", response_model=NodeStatus)
    async def node_status() -> Response:
        return Response(orjson.dumps(status.read()), media_type="application/json")

    @routes.post("/admin/set_policy", summary="Change a model's policy before the next dispatch")
    async def set_policy(body: SetPolicy) -> ModelPolicy:
        policy = _merged(engine.policy(body.model), body.model_extra or {})
        await engine.set_policy(body.model, policy)
        return policy

    return routes
