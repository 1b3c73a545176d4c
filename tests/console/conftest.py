"""A Chromium, and a server whose status a test writes."""

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Response

from app.api import console
from tests.console.browser import browser
from tests.e2e.conftest import free_port


def serving(**told):
    """What the page reads of a model that serves."""
    return {
        "queue_depth": 0, "dispatches": 0, "rows": 0, "share_target": 0.0, "share_actual": 0.0, "wait_p50": 0.0,
        "wait_p99": 0.0, "batch_rows": {}, "resident": True, "residency_floor": "system", "weight_bytes": 1000,
        "weight_loads": 1, "weight_evicts": 0, "ok": 0, "failed": 0, "dropped": {}, "in_flight": 0, **told,
    }  # fmt: skip


def model(name, state="READY", reason="", parts=(), **told):
    """One model of a status."""
    served = serving(**told) if state == "READY" else None
    return {"name": name, "state": state, "reason": reason, "parts": list(parts), "serving": served}


@dataclass
class Stub:
    """The page over a status that is made up."""

    port: int
    models: list[dict[str, Any]] = field(default_factory=list)
    node: dict[str, Any] = field(default_factory=dict)
    ready: bool = True
    asked: int = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def status(self) -> dict[str, Any]:
        self.asked += 1
        told: dict[str, Any] = {
            "backend": "cpu", "device": "cpu", "discipline": "fair", "control_mode": "dynamic", "alive": True,
            "draining": False,
            "queue_depth": sum(each["serving"]["queue_depth"] for each in self.models if each["serving"]),
            "device_busy_seconds": 0.0, "device_memory_in_use_bytes": 5_000_000, "device_memory_limit_bytes": 0,
            "resident_weight_bytes": 0, "pinned_weight_bytes": 0, "weight_pool_bytes": 0, "weight_hit_rate": None,
            "problems": {}, "models": self.models, **self.node,
        }  # fmt: skip
        return told

    def app(self):
        """The application."""
        app = FastAPI()
        app.include_router(console.router())

        @app.get("/status")
        async def status() -> dict[str, Any]:
            return self.status()

        @app.get("/v2/health/ready")
        async def ready() -> Response:
            return Response(status_code=200 if self.ready else 503)

        return app

    @contextmanager
    def serving(self):
        """While the server is there: it can go and come again."""
        started, app = threading.Event(), self.app()

        @asynccontextmanager
        async def lifespan(_):
            started.set()
            yield

        app.router.lifespan_context = lifespan
        config = uvicorn.Config(app, port=self.port, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=asyncio.run, args=[server.serve()])
        thread.start()
        try:
            assert started.wait(30)
            yield self
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """One Chromium for the whole run."""
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def away(page):
    """A server that a test starts itself."""
    yield Stub(free_port())
    page.open("about:blank")


@pytest.fixture
def stub(away):
    """A server that is there."""
    with away.serving():
        yield away
