"""What is read from the path that was asked for: the version of a model, and which methods there are."""

from typing import Annotated

from fastapi import Depends, FastAPI, Request
from starlette.routing import Match
from starlette.types import Scope


def _version(request: Request) -> str | None:
    return request.path_params.get("version")


#: The version in the path, None where the path names none. As a plain argument it would be read from the query too.
Version = Annotated[str | None, Depends(_version)]


def methods(app: FastAPI, scope: Scope) -> set[str]:
    """The methods of every route of a path; the router, which refuses a wrong one, tells those of the first alone."""
    found: set[str] = set()
    for route in app.routes:
        # What `include_router` added stands behind an object of its own.
        contexts = getattr(route, "effective_route_contexts", None)
        for each in (route,) if contexts is None else contexts():
            if each.matches(scope)[0] is not Match.NONE:
                found |= getattr(each, "methods", None) or set()
    return found or {"GET", "HEAD"}  # a file of a mounted folder, whose path was taken apart meanwhile
