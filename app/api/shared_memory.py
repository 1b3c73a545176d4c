"""The system shared memory extension: regions of clients, registered, listed and forgotten."""

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.bodies import documented, read_object
from app.domain.errors import InvalidRequest
from app.runtime.shared_memory import Region, Regions

PREFIX = "/v2/systemsharedmemory"

_REGISTRATION = documented(
    {
        "type": "object",
        "required": ["key", "byte_size"],
        "properties": {
            "key": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0, "default": 0},
            "byte_size": {"type": "integer", "minimum": 1},
        },
    },
    required=True,
)


def router(regions: Regions) -> APIRouter:
    """The routes of this module."""
    routes = APIRouter(prefix=PREFIX, tags=["V2 shared memory"])

    @routes.get("/status", summary="The registered regions")
    async def status() -> list[dict[str, Any]]:
        return [_described(region) for _, region in sorted(regions.known.items())]

    @routes.get("/region/{region}/status", summary="One registered region")
    async def region_status(region: str) -> list[dict[str, Any]]:
        return [_described(regions.find(region))]

    @routes.post("/region/{region}/register", summary="Register a region", openapi_extra=_REGISTRATION)
    async def register(region: str, request: Request) -> Response:
        regions.register(region, *_registration(await read_object(request)))
        return Response(status_code=200)

    @routes.post("/region/{region}/unregister", summary="Forget a region")
    async def unregister(region: str) -> Response:
        regions.unregister(region)
        return Response(status_code=200)

    @routes.post("/unregister", summary="Forget every region")
    async def unregister_all() -> Response:
        for name in regions.known:
            regions.unregister(name)
        return Response(status_code=200)

    return routes


def _described(region: Region) -> dict[str, Any]:
    return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}


def _registration(body: dict[str, Any]) -> tuple[str, int, int]:
    """Key, offset and size. Raises `InvalidRequest` naming the member."""
    key, offset, byte_size = body.get("key"), body.get("offset", 0), body.get("byte_size")
    if not isinstance(key, str):
        raise InvalidRequest(f"'key' must be the name of a shared memory object, got {key!r:.100}")
    if type(offset) is not int or offset < 0:
        raise InvalidRequest(f"'offset' must be a whole number of bytes, 0 or more, got {offset!r:.100}")
    if type(byte_size) is not int or byte_size < 1:
        raise InvalidRequest(f"'byte_size' must be a whole number of bytes, 1 or more, got {byte_size!r:.100}")
    return key, offset, byte_size
