"""What a handler that serves several paths reads from the one that was asked for."""

from typing import Annotated

from fastapi import Depends, Request


def _version(request: Request) -> str | None:
    return request.path_params.get("version")


#: The version in the path, None where the path names none. As a plain argument it would be read from the query too.
Version = Annotated[str | None, Depends(_version)]
