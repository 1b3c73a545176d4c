"""The same worker on Ray Serve: a replica is `create_app`, and what concerns all workers goes to every replica.

Requests come from HAProxy straight to a replica, in Serve's HAProxy mode. What is asked of all of them, commands of
operators and what `/metrics` and `/status` tell, is broadcast through Serve's own handle.
"""

import asyncio
import logging
import os
import secrets
import time
from argparse import Namespace
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import ray
from ray import serve
from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from app import logs
from app.api.access import Access
from app.main import create_app
from app.scaleout import control_app
from app.scaleout.autoscaling import BusyMeter, ByQueueDepth
from app.scaleout.broadcast import Broadcast, Said, concerns_all
from app.scaleout.fleet import Answer, Headers
from app.scaleout.remembered import Command, CommandLog, Memory
from app.scaleout.workers import Worker
from app.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two looks at whether the models are loaded.
_PAUSE = 0.25

#: Seconds for the memory to answer.
_PATIENCE = 5.0


class Replica:
    """One worker. Everything runs on the event loop of its replica."""

    def __init__(self, settings: Settings, deploy: str, memory: Any) -> None:
        logs.configure(settings.log_format)
        context = serve.get_replica_context()
        name, endpoints = context.replica_id.unique_id, settings.endpoints
        assert endpoints.admin_token is not None, "the deploy gives all replicas one token"
        self._token = endpoints.admin_token.get_secret_value()
        device = next(iter(ray.get_runtime_context().get_accelerator_ids().get("GPU", ())), "cpu")
        self._worker = Worker(name, name, device, endpoints.port)
        self._own: ASGIApp = create_app(settings.model_copy(update={"worker_name": name}))
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(self._own), base_url="http://replica")
        self._deploy, self._memory, self._log = deploy, memory, CommandLog()
        self._turn: asyncio.Future[Any] | None = None
        self._look: asyncio.Future[None]
        self._meter = BusyMeter(time.monotonic())
        everyone = Broadcast(
            name, serve.get_deployment_handle(context.deployment, context.app_name), self._log, self._remember
        )
        api = None if endpoints.api_token is None else endpoints.api_token.get_secret_value()
        self._all = control_app.create(everyone, everyone, Access(api, self._token), None, "ray_serve")

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called by Serve once, after the constructor."""

        async def front(scope: Scope, receive: Receive, send: Send) -> None:
            for_all = scope["type"] == "http" and concerns_all(get_route_path(scope), scope["method"])
            await (self._all if for_all else self._own)(scope, receive, send)

        return front

    async def reconfigure(self, _: Any) -> None:
        """Called by Serve before the replica gets requests: it is ready first, and knows what the others were told."""
        while not (await self._ask("/v2/health/ready")).ok:
            await asyncio.sleep(_PAUSE)
        self._look = asyncio.ensure_future(self._remember([]))
        await self._look

    async def check_health(self) -> None:
        """Called by Serve every few seconds, which starts another replica where this raises."""
        answer = await self._ask("/v2/health/live")
        if not answer.ok:
            raise RuntimeError(f"the worker is not live: {answer.content!r:.200}")
        if self._look.done():  # not waited for: commands that load weights may take longer than Serve has patience
            self._look = asyncio.ensure_future(self._remember(self._log.commands()))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve every few seconds, for `ByQueueDepth`."""
        status = (await self._ask("/status")).json()
        busy = self._meter.look(time.monotonic(), status["device_busy_seconds"])
        return {"queue_depth": float(status["queue_depth"]), "busy": busy}

    async def ask(self, path: str, method: str, body: bytes, headers: Headers) -> Said:
        """What this replica answers."""
        return self._said(await self._ask(path, method, body, headers))

    async def obey(self, command: Command) -> Said:
        """Carry out a command, after those before it."""
        return self._said(await self._in_turn(self._carry_out(command)))

    def _said(self, answer: Answer) -> Said:
        return Said(self._worker, ray.util.get_node_ip_address(), os.getpid(), answer)

    async def _ask(self, path: str, method: str = "GET", body: bytes = b"", headers: Headers = None) -> Answer:
        headers = {b"authorization": b"Bearer " + self._token.encode(), **(headers or {})}
        got = await self._client.request(method, path, content=body, headers=headers)
        return Answer(got.status_code, got.content)

    async def _carry_out(self, command: Command) -> Answer:
        answer = await self._post(command)
        if answer.ok:
            for later in self._log.merge([command])[1:]:
                await self._post(later)
        return answer

    async def _catch_up(self, commands: Sequence[Command]) -> None:
        for command in self._log.merge(commands):
            answer = await self._post(command)
            if not answer.ok:
                logger.warning("%s, which others carried out, fails here: %r", command.path, answer.content[:200])

    async def _post(self, command: Command) -> Answer:
        return await self._ask(command.path, "POST", command.body, command.headers)

    async def _remember(self, commands: list[Command]) -> None:
        """Tell the memory, and carry out what it knows and we do not. It may be gone for a while, and starts anew."""
        try:
            async with asyncio.timeout(_PATIENCE):
                known = await self._memory.merge.remote(self._deploy, commands)
        except (TimeoutError, ray.exceptions.RayError, serve.exceptions.RayServeException) as error:
            logger.warning("the memory of commands does not answer: %s", str(error) or "in time")
            return
        await self._in_turn(self._catch_up(known))

    async def _in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it after what was begun before: whatever comes last is what counts."""
        self._turn = mine = asyncio.ensure_future(_after(self._turn, work))
        return await asyncio.shield(mine)


async def _after(before: "asyncio.Future[Any] | None", work: Coroutine[Any, Any, T]) -> T:
    if before is not None:
        await asyncio.wait([before])
    return await work


def application(arguments: Namespace, settings: Settings, environment: Mapping[str, str]) -> Any:
    """The application that `serve.run` takes: the replicas, and one memory of what they were told.

    `arguments` are those of `cluster deploy`. Each deploy is one of its own: what was changed since the last is what
    its settings say again.
    """
    deploy = secrets.token_hex(8)
    limit = {"max_ongoing_requests": 2 * settings.endpoints.max_concurrent_requests}  # the worker itself refuses
    memory = serve.deployment(name="memory", ray_actor_options={"num_cpus": 0}, **limit)(Memory).bind(deploy)
    number: dict[str, Any] = {"num_replicas": arguments.replicas}
    if arguments.max_replicas is not None:
        policy = {"policy_function": f"{ByQueueDepth.__module__}:{ByQueueDepth.__name__}"}
        number = {
            "autoscaling_config": {
                "min_replicas": arguments.replicas,
                "max_replicas": arguments.max_replicas,
                "policy": {**policy, "policy_kwargs": {"target": arguments.queue_depth}},
            }
        }
    worker = serve.deployment(
        name="worker",
        **number,
        **limit,
        ray_actor_options={
            "num_gpus": int(settings.runtime.backend == "cuda"),
            "num_cpus": arguments.cpus,
            "runtime_env": {"env_vars": dict(environment)},
        },
        user_config={"deploy": deploy},  # with one, Serve waits for `reconfigure` before it sends requests
        graceful_shutdown_timeout_s=settings.shutdown_timeout_seconds,
        graceful_shutdown_wait_loop_s=0.25,
    )(serve.ingress()(Replica))
    return worker.bind(settings, deploy, memory)
