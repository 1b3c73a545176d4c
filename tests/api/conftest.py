"""The HTTP application over a staged engine, asked in this process."""

from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api import app as http
from app.api.access import Access
from app.api.inference import Inference
from app.api.journal import Journal
from app.api.limits import InFlight
from app.runtime.shared_memory import Regions

ADMIN = {"Authorization": "Bearer the-admin-token"}


@dataclass
class Api:
    """The application, and clients of it."""

    app: FastAPI
    stage: Any
    handler: Inference

    def client(self, headers=None, root_path=""):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, root_path=root_path)
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    async def get(self, path, **options):
        async with self.client(ADMIN) as client:
            return await client.get(path, **options)

    async def post(self, path, **options):
        async with self.client(ADMIN) as client:
            return await client.post(path, **options)

    async def infer(self, rows, name="m", **members):
        """An inference request as JSON."""
        body = {
            "inputs": [{"name": "x", "shape": [len(rows), 3], "datatype": "FP32", "data": [[row] * 3 for row in rows]}]
        }
        return await self.post(f"/v2/models/{name}/infer", json={**body, **members})


@pytest.fixture
def make_api(stage):
    """Build the application over the stage."""

    def make(
        *,
        explicit=False,
        api_token=None,
        max_requests=100,
        max_bytes=1 << 20,
        max_body_bytes=1 << 16,
        max_json_bytes=1 << 16,
        slow_seconds=inf,
        settings=None,
        shared_memory=False,
    ):
        access = Access(api_token, "the-admin-token")
        regions = Regions() if shared_memory else None
        in_flight = InFlight(max_requests, max_bytes, max_body_bytes)
        journal = Journal(stage.clock, stage.dispatcher.log, slow_seconds)
        handler = Inference(stage.engine, access, in_flight, max_json_bytes, journal=journal, regions=regions)

        @asynccontextmanager
        async def lifespan(app):
            yield {}

        app = http.create(
            stage.engine,
            handler,
            access,
            stage.readiness,
            stage.status("explicit" if explicit else "dynamic"),
            journal,
            "worker-1",
            settings=settings or {},
            version="1.2.3",
            explicit=explicit,
            lifespan=lifespan,
            regions=regions,
        )
        return Api(app, stage, handler)

    return make


@pytest.fixture
def api(make_api):
    """In a self-managed mode, without an API token."""
    return make_api()


@pytest.fixture
def explicit(make_api):
    """In explicit mode."""
    return make_api(explicit=True)
