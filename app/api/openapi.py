"""The OpenAPI document: what FastAPI knows of the routes, and what it cannot know, which is how they refuse."""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.api.access import Access, Door, door_of
from app.api.schemas import Error, InferenceRequest, InferenceResponse

_REF = "#/components/schemas/{model}"

_DESCRIPTION = (
    "The V2 inference protocol with Triton's extensions, and what operators need. Every refusal is JSON with `error`, "
    "for people, and `code`, for programs."
)

#: Last segment of a path → how it refuses, besides what follows from its parameters, its body and its door.
_REFUSALS = {
    "infer": (400, 408, 429, 503, 504),
    "load": (409, 422, 503),
    "unload": (409, 503),
    "set_policy": (404, 409, 503),
    "set_residency": (404, 409, 503),
    "compact": (404, 409, 503),
    "prefetch": (404, 409, 503),
}

#: Answers that a reader of the document would not expect under their status.
_MEANINGS = {
    408: "The body did not come in time.",
    409: "Not in this mode of the server.",
    422: "The bundle cannot be served.",
    429: "Too much is queued or in flight; try again after `Retry-After` seconds.",
    503: "The model, or the server, cannot serve now.",
    504: "The deadline passed, or cannot be met.",
}

_BINARY = {"schema": {"type": "string", "format": "binary", "description": "JSON, then the binary tensors."}}

#: The OpenAPI entry of an inference route.
INFERENCE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": (
            "JSON, or JSON followed by binary tensors: then the header Inference-Header-Content-Length is the length "
            "of the JSON in bytes. Content-Type is not looked at."
        ),
        "content": {
            "application/json": {"schema": {"$ref": _REF.format(model="InferenceRequest")}},
            "application/octet-stream": _BINARY,
        },
    },
    "responses": {
        "200": {
            "description": "The outputs: JSON, and behind it those that were wanted in binary.",
            "content": {
                "application/json": {"schema": {"$ref": _REF.format(model="InferenceResponse")}},
                "application/octet-stream": _BINARY,
            },
        }
    },
}


def document(app: FastAPI, access: Access) -> dict[str, Any]:
    """The document, made once; it says of each route which token it asks for as the server is set up now."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes)
        components = made.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        own = models_json_schema(
            [(Error, "serialization"), (InferenceRequest, "validation"), (InferenceResponse, "serialization")],
            ref_template=_REF,
        )
        schemas.update(own[1]["$defs"])
        components["securitySchemes"] = {
            door.value: {"type": "http", "scheme": "bearer", "description": f"The {door.value} token."}
            for door in _guarded(access)
        }
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _complete(operation, path, door_of(path, method.upper()), access)
        app.openapi_schema = made
    return app.openapi_schema


def _guarded(access: Access) -> list[Door]:
    return [Door.ADMIN] if access.api_is_open else [Door.API, Door.ADMIN]


def _complete(operation: dict[str, Any], path: str, door: Door, access: Access) -> None:
    """Add to an operation how it is guarded and how it refuses."""
    known = {each["name"] for each in operation.get("parameters", ())}
    for name in re.findall(r"{(\w+)}", path):
        if name not in known:
            place = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            operation.setdefault("parameters", []).append(place)
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own, which is a 400 here
    guarded = door in _guarded(access)
    for status in sorted(_refusals(operation, path, guarded)):
        responses.setdefault(str(status), _refusal(status))
    if guarded:
        # The admin token opens both doors.
        operation["security"] = [{each.value: []} for each in dict.fromkeys((door, Door.ADMIN))]


def _refusals(operation: dict[str, Any], path: str, guarded: bool) -> Iterator[int]:
    yield 500
    if guarded:
        yield from (401, 403)
    if "requestBody" in operation:
        yield from (400, 413, 415)
    places = {each["in"] for each in operation.get("parameters", ())}
    if "query" in places:
        yield 400
    if "path" in places:
        yield from (404, 503)
    yield from _REFUSALS.get(path.rpartition("/")[2], ())


def _refusal(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Error")}
    meaning = _MEANINGS.get(status, f"{HTTPStatus(status).phrase}.")
    return {"description": meaning, "content": {"application/json": {"schema": schema}}}
