"""An engine over a fake device: the real dispatcher, loader and pools, bundles from disk."""

import time
from dataclasses import dataclass

import pytest

from app.backends.fake import FakeBackend
from app.domain.config import ModelPolicy, SchedulerConfig
from app.engine.engine import Engine
from app.engine.request import InferRequest
from app.runtime.control import Control
from app.runtime.dispatcher import Dispatcher
from app.runtime.executor import Executor
from app.runtime.hook_pool import HookPool
from app.runtime.loader import Loader
from app.runtime.registry import ModelRegistry
from app.runtime.watcher import RepositoryWatcher
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Scheduler
from tests.builders import write_identity_bundle


@dataclass
class Stage:
    """The parts, and short ways to use them."""

    root: object
    backend: FakeBackend
    dispatcher: Dispatcher
    control: Control
    registry: ModelRegistry
    watcher: RepositoryWatcher
    engine: Engine
    config: SchedulerConfig

    def load(self, name="m", **bundle):
        """Write a bundle and load it; its generation."""
        path = write_identity_bundle(self.root, name, **bundle)
        self.control.load_model(name, path).result(30)
        self.backend.calls.clear()
        return self.registry.resolve(name)

    async def infer(self, inputs, name="m", **fields):
        """One request, begun and ended as the HTTP layer does it."""
        generation = self.engine.resolve(name, None)
        self.engine.begin(generation)
        code: str | None = "internal"
        try:
            result = await self.engine.infer(InferRequest(generation, inputs, time.monotonic(), **fields))
            code = None
        except BaseException as error:
            code = getattr(error, "code", "cancelled")
            raise
        finally:
            self.engine.end(generation, code, 0.0)
        return result


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def stage(tmp_path):
    """An engine whose threads run."""
    clock = time.monotonic
    config = SchedulerConfig(discipline="fifo", sizing="fill", models={"bounded": ModelPolicy(max_batch_size=2)})
    backend, registry, weights = FakeBackend(), ModelRegistry(), WeightCache()
    executor = Executor(weights, clock)
    dispatcher = Dispatcher(Scheduler(config), executor, clock)
    loader = Loader(backend)
    policies = config.models
    control = Control(
        dispatcher, executor, weights, registry, loader, lambda name: policies.get(name, ModelPolicy()), clock
    )
    hooks = HookPool("hook", 2)
    watcher = RepositoryWatcher([tmp_path], ["*"], ["*"], control, poll_seconds=None, on_started=lambda names: None)
    engine = Engine(dispatcher, control, registry, watcher, hooks, clock)
    dispatcher.start()
    yield Stage(tmp_path, backend, dispatcher, control, registry, watcher, engine, config)
    loader.stop()
    control.stop()
    dispatcher.stop(10)
    hooks.stop()
