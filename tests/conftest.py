"""An engine over a fake device: the real dispatcher, loader, pools and watcher, bundles from disk."""

import asyncio
import concurrent.futures
import gc
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from app.backends.fake import FakeBackend
from app.domain.config import ModelPolicy, RuntimeConfig, SchedulerConfig
from app.domain.model import MergeKey
from app.engine.engine import Engine
from app.engine.expiry import Expiry
from app.engine.readiness import Readiness
from app.engine.request import InferRequest
from app.engine.status_reader import StatusReader
from app.runtime.control import Control
from app.runtime.dispatcher import Dispatcher
from app.runtime.executor import Executor
from app.runtime.hook_pool import HookPool
from app.runtime.loader import Loader
from app.runtime.pending import PendingRequest
from app.runtime.registry import ModelRegistry
from app.runtime.residency import ResidencyKeeper
from app.runtime.tuning import Tuning
from app.runtime.watcher import RepositoryWatcher
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Scheduler
from tests.builders import rows_of, write_identity_bundle

# How fast a machine is fails nothing. The examples are the same in every run, so that none fails by chance, and one
# that fails fails again, for whoever changed something; `--hypothesis-profile=search`, as in `make soak`, tries others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("search"), derandomize=True)
settings.load_profile("repeatable")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Long bytes may hold when they were made, as gzip's do: names of tests must be the same in every process."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) and len(val) > 20 else None


def pytest_collection_finish():
    """Thousands of tests stand until the end: without this, each full collection looks at all of them, for 0.5 s."""
    gc.collect()
    gc.freeze()


class Clock:
    """The monotonic clock, which can be put forward."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead

    def skip(self, seconds):
        self.ahead += seconds


class Hold:
    """A step that waits until it is let go, whatever it is called with."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *_):
        self.entered.set()
        assert self.opened.wait(30)

    def wait_entered(self):
        assert self.entered.wait(30)

    def open(self):
        self.opened.set()


@dataclass
class Stage:
    """The parts, and short ways to use them."""

    root: Path
    clock: Clock
    backend: FakeBackend
    dispatcher: Dispatcher
    loader: Loader
    control: Control
    registry: ModelRegistry
    tuning: Tuning
    weights: WeightCache
    watcher: RepositoryWatcher
    readiness: Readiness
    hooks: HookPool
    engine: Engine
    config: SchedulerConfig
    policies: dict[str, ModelPolicy]
    watchers: list[RepositoryWatcher] = field(default_factory=list)

    def load(self, name="m", **bundle):
        """Write a bundle and load it; its generation."""
        path = write_identity_bundle(self.root, name, **bundle)
        self.control.load_model(name, path).result(30)
        self.backend.calls.clear()
        return self.registry.resolve(name)

    def ask(self, row=0, rows=1, name="m"):
        """Queue a request for rows that tell their number; the future of its part."""
        request = PendingRequest(
            model_id=self.registry.resolve(name).model_id,
            merge_key=MergeKey("default"),
            rows=rows,
            enqueued_at=self.clock(),
            deadline=inf,
            inputs={"x": rows_of(row, rows)},
            future=concurrent.futures.Future(),
        )
        self.dispatcher.submit([request], request.enqueued_at)
        return request.future

    def answer(self, row=0, rows=1, name="m"):
        """The first column of an answer."""
        return self.ask(row, rows, name).result(30).outputs["y"][:, 0].tolist()

    def hold_run(self):
        """Hold the device: the next execution waits to be let go. Those after it do not."""
        hold = Hold()

        def once(*_):
            self.backend.on_run = None
            hold()

        self.backend.on_run = once
        return hold

    def hold_compile(self):
        """Hold the loader: the next load waits to be let go. Those after it do not."""
        hold = Hold()

        def once(*_):
            self.backend.on_compile = None
            hold()

        self.backend.on_compile = once
        return hold

    def settle(self):
        """Wait until the dispatcher has carried out what it was told."""
        self.dispatcher.call(lambda: None).result(30)

    def states(self):
        """State and reason by name."""
        self.settle()
        return {name: (str(entry.state), entry.reason) for name, entry in self.registry.entries.items()}

    def stats(self, name="m"):
        """What the scheduler counts of a name."""
        return self.dispatcher.stats().models[self.registry.resolve(name).model_id]

    def watch(
        self,
        include: Sequence[str] = ("*",),
        startup: Sequence[str] = ("*",),
        roots: Sequence[Path] | None = None,
        poll_seconds: float | None = None,
        readiness: Readiness | None = None,
        named: Mapping[str, Sequence[str]] | None = None,
    ):
        """Another watcher of the same directory."""
        told = (readiness or self.readiness).expect
        watcher = RepositoryWatcher(
            roots or [self.root], include, startup, self.control, poll_seconds=poll_seconds, on_started=told,
            named=named,
        )  # fmt: skip
        self.watchers.append(watcher)
        return watcher

    def status(self, mode="dynamic", device="7"):
        """A reader of the status."""
        return StatusReader(
            self.dispatcher, self.registry, self.weights, self.backend, device, self.hooks, self.watcher,
            self.readiness, self.engine.digests, mode,
        )  # fmt: skip

    async def infer(self, inputs, name="m", **fields):
        """One request, begun and ended as the HTTP layer does it."""
        generation = self.engine.begin(self.engine.resolve(name, None), fields.get("deadline", inf), self.clock())
        code: str | None = "internal"
        expiry = Expiry(fields["deadline"] - self.clock()) if "deadline" in fields else None
        if expiry is not None:
            fields["watch"] = expiry.watch
        try:
            result = await self.engine.infer(InferRequest(generation, inputs, self.clock(), **fields))
            code = None
        except BaseException as error:
            code = getattr(error, "code", "cancelled")
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
            self.engine.end(generation, code, 0.0)
        return result


@pytest.fixture(autouse=True)
def log_level():
    """What a test has `logs.configure` do is over when it ends: the next would find lines that it does not expect."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def put_loop_forward(monkeypatch):
    """Put the clock of the running event loop forward by so many seconds: what was to happen until then happens now.

    A deadline that is far away, and made to pass when all is where the test wants it, passes on no machine too early.
    """

    def put(seconds):
        loop = asyncio.get_running_loop()
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + seconds)

    return put


@pytest.fixture
def make_stage(tmp_path):
    """Build an engine whose threads run, one a test.

    `arena` is the device memory, in bytes, that weights share; `external` that operators move them.
    """
    with ExitStack() as ends:

        def make(*, arena=0, external=False, runtime=None, **config):
            return ends.enter_context(running_stage(tmp_path / "models", arena, external, runtime, config))

        yield make


@pytest.fixture
def stage(make_stage):
    """An engine whose threads run. `policies` are the configured ones, and may be changed."""
    return make_stage()


@contextmanager
def running_stage(root, arena, external, runtime, changes):
    clock = Clock()
    root.mkdir()
    config = SchedulerConfig(**{"discipline": "fifo", "sizing": "fill", **changes})
    policies = {"bounded": ModelPolicy(max_batch_size=2)}
    backend, registry = FakeBackend(spend=clock.skip, limit=arena), ModelRegistry()
    weights = WeightCache(backend, runtime or RuntimeConfig(weight_cache_wiggle_fraction=0.0), backend.arena_bytes())
    executor = Executor(weights, clock)
    on_demand = weights.comes_and_goes and not external
    dispatcher = Dispatcher(Scheduler(config, background_loads=on_demand), executor, clock)
    keeper = ResidencyKeeper(backend, weights, dispatcher, clock, config.compaction_interval, external=external)
    executor.rebuild = keeper.rebuild
    dispatcher.tend = keeper.tend if on_demand else None
    loader = Loader(backend)
    control = Control(
        dispatcher, executor, weights, keeper, registry, loader, lambda name: policies.get(name, ModelPolicy()), clock,
        stay_resident=external,
    )  # fmt: skip
    tuning = Tuning(dispatcher, executor, weights, keeper, registry, external=external)
    hooks, metas, readiness = HookPool("hook", 2), HookPool("meta", 2), Readiness(())
    watcher = RepositoryWatcher([root], ["*"], ["*"], control, poll_seconds=None, on_started=readiness.expect)
    engine = Engine(dispatcher, control, tuning, registry, watcher, hooks, metas, clock, config)
    staged = Stage(
        root, clock, backend, dispatcher, loader, control, registry, tuning, weights, watcher, readiness, hooks, engine,
        config, policies,
    )  # fmt: skip
    dispatcher.start()
    yield staged
    for each in staged.watchers:
        each.stop()
    loader.stop()
    keeper.stop()
    for each in staged.watchers:
        each.join()
    control.stop()
    dispatcher.stop(10)
    hooks.stop()
    metas.stop()
