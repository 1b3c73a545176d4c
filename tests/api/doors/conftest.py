"""Servers for the tests of both doors."""

import pytest

from tests.api.doors.harness import serve


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request):
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


@pytest.fixture(params=["fast", "asgi", "plain"])
def door(request):
    """Either door; `plain` is the ASGI door behind uvicorn's own protocol."""
    return request.param


@pytest.fixture
async def server(door):
    async with serve(door) as running:
        yield running


@pytest.fixture
async def client(server):
    return await server.connect()
