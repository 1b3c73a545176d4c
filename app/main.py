"""The composition root: builds the engine and the HTTP application, and says in which order they live and die."""

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from app import backends
from app.api import app as http
from app.api.access import Access
from app.api.codec.aside import COMMAND
from app.api.inference import Inference
from app.api.journal import Journal
from app.api.limits import InFlight
from app.backends.base import Backend
from app.backends.cuda import physical_ordinal
from app.backends.memory import usable_memory
from app.backends.threads import usable_cores
from app.domain.config import ModelPolicy
from app.domain.errors import ShuttingDown
from app.engine.engine import Engine
from app.engine.readiness import Readiness
from app.engine.status_reader import StatusReader
from app.repository.build import Builder
from app.runtime.aside import Aside
from app.runtime.control import Control
from app.runtime.dispatcher import Dispatcher
from app.runtime.executor import Executor
from app.runtime.hook_pool import HookPool
from app.runtime.loader import Loader
from app.runtime.recorder import Recorder
from app.runtime.registry import Generation, ModelRegistry
from app.runtime.residency import ResidencyKeeper
from app.runtime.shared_memory import Regions
from app.runtime.tuning import Tuning
from app.runtime.watcher import RepositoryWatcher
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Scheduler
from app.settings import PREFIX, Settings, SettingsError
from app.startup import admin_token, forget_admin_token, secret

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """Everything that one process is made of."""

    settings: Settings
    backend: Backend
    engine: Engine
    dispatcher: Dispatcher
    control: Control
    keeper: ResidencyKeeper
    loader: Loader
    hooks: HookPool
    metas: HookPool
    watcher: RepositoryWatcher
    readiness: Readiness
    status: StatusReader
    recorder: Recorder | None
    access: Access
    inference: Inference
    aside: Aside


def build_node(settings: Settings, clock: Callable[[], float] = time.monotonic) -> Node:
    """Put the parts together; no thread runs yet."""
    config = settings.scheduler
    _log_settings(settings)
    backend = backends.create(settings.runtime, settings.cache_dir)
    external = settings.model_control_mode == "explicit"
    registry, weights = ModelRegistry(), WeightCache(backend, settings.runtime, backend.arena_bytes())
    on_demand = weights.comes_and_goes and not external
    executor = Executor(weights, clock)
    dispatcher = Dispatcher(Scheduler(config, background_loads=on_demand), executor, clock)
    keeper = ResidencyKeeper(backend, weights, dispatcher, clock, config.compaction_interval, external=external)
    executor.rebuild = keeper.rebuild
    dispatcher.tend = keeper.tend if on_demand else None
    loader = Loader(backend, Builder(settings.cache_dir))
    control = Control(
        dispatcher,
        executor,
        weights,
        keeper,
        registry,
        loader,
        lambda name: config.models.get(name, ModelPolicy()),
        clock,
        stay_resident=external,
    )
    tuning = Tuning(dispatcher, executor, weights, keeper, registry, external=external)
    hooks = HookPool("hook", settings.hook_threads or min(usable_cores(), 4))
    metas = HookPool("meta", settings.meta_concurrency)
    readiness = Readiness(settings.required_models)
    watcher = _watcher(settings, control, readiness)
    keeper.remake = partial(_load_anew, registry, watcher, control)
    engine = Engine(dispatcher, control, tuning, registry, watcher, hooks, metas, clock, config)
    device = "cpu" if backend.name == "cpu" else physical_ordinal(settings.runtime.device_ordinal)
    status = StatusReader(
        dispatcher, registry, weights, backend, device, hooks, watcher, readiness, engine.digests,
        settings.model_control_mode,
    )  # fmt: skip
    recorder = _recorder(settings)
    journal = Journal(clock, dispatcher.log, settings.slow_request_ms / 1e3 or inf, recorder)
    engine.watchdog.on_lost = partial(journal.write_out, recent_file(settings))
    access, in_flight = Access(secret(settings.endpoints.api_token), admin_token(settings)), _in_flight(settings)
    aside, regions = Aside("json_process", COMMAND), Regions() if settings.endpoints.shared_memory else None
    inference = Inference(engine, access, in_flight, settings.endpoints.max_json_bytes, aside, journal, regions)
    return Node(
        settings, backend, engine, dispatcher, control, keeper, loader, hooks, metas, watcher, readiness, status,
        recorder, access, inference, aside,
    )  # fmt: skip


def _watcher(settings: Settings, control: Control, readiness: Readiness) -> RepositoryWatcher:
    return RepositoryWatcher(
        settings.model_dirs,
        settings.models_include,
        _startup_models(settings),
        control,
        poll_seconds=settings.model_poll_seconds if settings.model_control_mode == "dynamic" else None,
        on_started=readiness.expect,
        named={
            f"{PREFIX}MODELS_INCLUDE": settings.models_include,
            f"{PREFIX}STARTUP_MODELS": settings.startup_models or (),
            f"{PREFIX}REQUIRED_MODELS": settings.required_models,
            f"{PREFIX}SCHEDULER_MODELS": settings.scheduler.models,
        },
    )


def _in_flight(settings: Settings) -> InFlight:
    return InFlight(
        settings.endpoints.max_concurrent_requests,
        settings.endpoints.max_inflight_bytes or usable_memory() // 4,
        settings.endpoints.max_body_bytes,
    )


def _recorder(settings: Settings) -> Recorder | None:
    if settings.record_dir is None:
        return None
    try:
        return Recorder(settings.record_dir, settings.record_max_bytes)
    except OSError as error:
        raise SettingsError(
            f"INFERENCE_SERVER_RECORD_DIR={settings.record_dir}: cannot be written ({error.strerror}): name a "
            f"directory that this user may write"
        ) from error


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application; its lifespan starts and stops the node."""
    node = build_node(settings or Settings.load())
    worker = node.settings.worker_name or socket.gethostname()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        sys.setswitchinterval(node.settings.switch_interval_us / 1e6)
        # What stands now stays: without this every full collection walks all of it, for tens of milliseconds.
        gc.collect()
        gc.freeze()
        # Few objects here are in cycles. By default each 700 new ones are looked at, as many as one batch of requests
        # holds: that took 0.3 µs of a small request.
        gc.set_threshold(10_000)
        loop = asyncio.get_running_loop()
        node.control.on_retired = partial(_retire, loop, node.engine)
        if node.recorder is not None:
            node.recorder.start()
        node.dispatcher.start()
        node.engine.watchdog.start()
        node.watcher.start()
        state: dict[str, Any] = {
            "drain": drainer(node),
            "shutdown_timeout": node.settings.shutdown_timeout_seconds,
        }
        if node.settings.endpoints.fast_path:
            state["inference_handler"] = node.inference
        yield state
        forget_admin_token(node.settings, node.access)
        node.engine.refuse()
        node.engine.watchdog.stop()
        await asyncio.to_thread(stop_node, node)

    return http.create(
        node.engine,
        node.inference,
        node.access,
        node.readiness,
        node.status,
        node.inference.journal,
        worker,
        settings={name: setting._asdict() for name, setting in node.settings.effective().items()},
        version=version("inference-server"),
        explicit=node.settings.model_control_mode == "explicit",
        lifespan=lifespan,
        regions=node.inference.regions,
    )


def drainer(node: Node) -> Callable[[], Awaitable[None]]:
    """From the first signal to the end of service: unready, normal service, no new requests, the last answers."""

    async def drain() -> None:
        settings, engine = node.settings, node.engine
        seconds = settings.shutdown_timeout_seconds
        limit = engine.clock() + seconds - min(2.0, seconds / 4)  # the rest is for the last answers and the threads
        node.readiness.draining = True
        logger.info("draining: not ready, serving for %g s more", settings.drain_delay_seconds)
        await asyncio.sleep(min(settings.drain_delay_seconds, limit - engine.clock()))
        engine.refuse()
        node.loader.abandon()
        if not await engine.idle(limit - engine.clock()):
            logger.warning("giving up %d requests", engine.leases.total)
            engine.give_up()
            node.aside.give_up(ShuttingDown("the server shut down before the request was read"))
            await engine.idle(0.5)  # the refusals leave

    return drain


def stop_node(node: Node) -> None:
    """End every thread; weights go last, on the dispatcher thread."""
    node.watcher.stop()
    node.backend.close()  # a running compile ends, so that the loader does
    node.loader.stop()
    node.keeper.stop()
    node.watcher.join()
    node.control.stop()
    node.dispatcher.stop(timeout=1.0)
    node.aside.close()
    node.hooks.stop(wait=False)
    node.metas.stop(wait=False)
    if node.recorder is not None:
        node.recorder.stop()


def recent_file(settings: Settings) -> Path:
    """Where the latest requests and dispatches go when nothing can be executed any more."""
    return (settings.record_dir or settings.cache_dir) / f"recent-{settings.endpoints.port}.json"


def _retire(loop: asyncio.AbstractEventLoop, engine: Engine, generation: Generation) -> None:
    loop.call_soon_threadsafe(engine.leases.retire, generation)


def _load_anew(registry: ModelRegistry, watcher: RepositoryWatcher, control: Control, model_id: str) -> Future[None]:
    """Load the bundle of a generation again, from where it lies now."""
    name = registry.name_of(model_id)
    return control.load_model(name, watcher.find(name))


def _startup_models(settings: Settings) -> tuple[str, ...]:
    if settings.startup_models is not None:
        return settings.startup_models
    return () if settings.model_control_mode == "explicit" else ("*",)


def _log_settings(settings: Settings) -> None:
    """Every setting and its source, in one line."""
    facts = {name: f"{each.value} ({each.source})" for name, each in settings.effective().items()}
    logger.info("settings", extra={"facts": facts})
