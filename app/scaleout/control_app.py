"""The node's own routes: health, status and metrics of all workers together, and commands that go to every one."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from app.api.access import Access
from app.api.bodies import read_bytes, read_object
from app.api.failures import handle_errors
from app.api.gate import AccessGate
from app.domain.errors import InvalidRequest, Unsupported
from app.scaleout.controller import Controller
from app.scaleout.fleet import ASK_SECONDS, Answer, Headers
from app.scaleout.joining import statuses_of
from app.scaleout.merging import merged_answers, merged_metrics, merged_statistics
from app.scaleout.policies import changed_policy, changed_replicas, described
from app.scaleout.workers import Worker

#: Seconds for commands, some of which load weights.
COMMAND_SECONDS = 600.0

#: Headers of a request that its copies keep.
_KEPT = (b"authorization", b"content-type", b"content-encoding", b"accept", b"x-request-id")


class Node(Protocol):
    """What the routes need to know of the process that they run in."""

    draining: bool

    def processes(self) -> list[dict[str, Any]]:
        """Name, device, address, process id and number of starts of every worker."""


class Fleet(Protocol):
    """All workers."""

    @property
    def workers(self) -> Sequence[Worker]:
        """Which they are."""

    async def ask_all(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Headers = None,
        seconds: float = ASK_SECONDS,
    ) -> Mapping[str, Answer]:
        """The same of every worker at once, by its name, with our own token unless `headers` say who asks."""

    async def any_ok(self, path: str, seconds: float) -> bool:
        """Whether any worker answers that all is well."""


def create(node: Node, fleet: Fleet, access: Access, controller: Controller | None, mode: str) -> FastAPI:
    """Wire the application; `controller` only where models are placed."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _health(app, node, fleet)
    _reports(app, node, fleet, controller, mode)
    _placement(app, controller, mode)
    _rest(app, fleet)
    app.add_middleware(AccessGate, access=access)
    handle_errors(app)
    return app


def _json(status: int, body: Any) -> Response:
    content = body if isinstance(body, bytes) else orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    return Response(content, status, media_type="application/json")


def _health(app: FastAPI, node: Node, fleet: Fleet) -> None:
    @app.get("/v2/health/live")
    async def live() -> Response:
        return _json(200, {"live": True})  # whoever reads this was answered by the process that restarts the workers

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        is_ready = not node.draining and await fleet.any_ok("/v2/health/ready", seconds=2.0)
        return _json(200 if is_ready else 503, {"ready": is_ready})


def _reports(app: FastAPI, node: Node, fleet: Fleet, controller: Controller | None, mode: str) -> None:
    @app.get("/status")
    async def status() -> Response:
        statuses = statuses_of(await fleet.ask_all("/status"))
        workers = [{**each, "status": statuses.get(each["name"])} for each in node.processes()]
        placement = None if controller is None else described(controller)
        return _json(200, {"mode": mode, "draining": node.draining, "workers": workers, "placement": placement})

    @app.get("/metrics")
    async def metrics() -> Response:
        answers = await fleet.ask_all("/metrics")
        texts = {name: each.content.decode() for name, each in answers.items() if each.ok}
        places = {each.name: f'gpu="{each.gpu}",worker="{each.label}"' for each in fleet.workers}
        merged = [_up(fleet, texts)]
        for family in merged_metrics(texts, places):
            merged.append(family)
            await asyncio.sleep(0)
        return Response("".join(merged), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v2/models/stats")
    @app.get("/v2/models/{model}/stats")
    @app.get("/v2/models/{model}/versions/{version}/stats")
    async def statistics(request: Request) -> Response:
        answers = await fleet.ask_all(_target(request), headers=_headers(request))
        told = [each.json() for each in answers.values() if each.ok]
        if not told:
            return _json(*merged_answers(answers))
        return _json(200, merged_statistics(told))


def _up(fleet: Fleet, texts: Mapping[str, str]) -> str:
    lines = "".join(
        [
            f'cluster_worker_up{{gpu="{each.gpu}",worker="{each.label}"}} {int(each.name in texts)}\n'
            for each in fleet.workers
        ]
    )
    return f"# HELP cluster_worker_up 1 for a worker that answers\n# TYPE cluster_worker_up gauge\n{lines}"


def _placement(app: FastAPI, controller: Controller | None, mode: str) -> None:
    def placing() -> Controller:
        if controller is None:
            raise Unsupported(f"models are placed with cluster.mode=lpt_packing, not with {mode}")
        return controller

    @app.post("/admin/cluster/repack")
    async def repack() -> Response:
        found = placing()
        await found.repack()
        return _json(200, described(found))

    @app.post("/admin/cluster/set_replicas")
    async def set_replicas(request: Request) -> Response:
        found, wanted = placing(), await read_object(request)
        if not isinstance(wanted.get("model"), str) or wanted.keys() != {"model", "replicas"}:
            raise InvalidRequest('the body is {model: its name, replicas: a number or "all"}')
        await found.change(changed_replicas(found, wanted["model"], wanted["replicas"]), found.fills)
        return _json(200, described(found))

    @app.post("/admin/cluster/set_policy")
    async def set_policy(request: Request) -> Response:
        found = placing()
        await found.change(*changed_policy(found, await read_object(request)))
        return _json(200, described(found))


def _rest(app: FastAPI, fleet: Fleet) -> None:
    """Whatever else comes here is for every worker."""

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def fan_out(request: Request) -> Response:
        body = await read_bytes(request)
        answers = await fleet.ask_all(
            _target(request), request.method, body, _headers(request), seconds=COMMAND_SECONDS
        )
        return _json(*merged_answers(answers))


def _target(request: Request) -> str:
    """Path, below the prefix, and query as they came: what was decoded would have to be quoted again."""
    path, query = request.scope["raw_path"].decode(), request.scope["query_string"].decode()
    path = path.removeprefix(request.scope.get("root_path", ""))
    return f"{path}?{query}" if query else path


def _headers(request: Request) -> dict[bytes, bytes]:
    return {name: value for name, value in request.scope["headers"] if name in _KEPT}
