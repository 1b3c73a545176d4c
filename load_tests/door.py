"""`door`: what the server's own code takes for a small request, in one thread: no sockets, no kernel, no device.

Protocol class, handler, engine, scheduler, dispatcher and executor are the real ones; the transport writes into
nothing, and a fake device answers its input. One turn feeds one request to each connection, lets the event loop wake
the dispatcher, and runs that on the same thread until all are answered. The guard counts the instructions of turns.
"""

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from app.api.access import Access
from app.api.fastpath import FastPathProtocol
from app.api.inference import Inference
from app.api.limits import InFlight
from app.backends.base import CacheEntry
from app.backends.fake import FakeBackend
from app.domain.config import ModelPolicy, RuntimeConfig, SchedulerConfig
from app.domain.model import DEFAULT_SIZES, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.engine.engine import Engine
from app.repository.bundle import Bundle
from app.repository.hooks import Hooks
from app.runtime.control import Control
from app.runtime.dispatcher import Dispatcher
from app.runtime.executor import Executor
from app.runtime.hook_pool import HookPool
from app.runtime.loader import Loader
from app.runtime.pending import PendingRequest
from app.runtime.registry import Generation, ModelEntry, ModelRegistry, ModelState
from app.runtime.residency import ResidencyKeeper
from app.runtime.tuning import Tuning
from app.runtime.watcher import RepositoryWatcher
from app.runtime.weights import WeightCache
from app.scheduling.scheduler import Scheduler
from load_tests.report import machine, spread, verdict
from load_tests.wire import head_of, infer_call, random_rows

WIDTH = 64

#: Connections, each with one request at a time: the largest compiled size.
CONNECTIONS = DEFAULT_SIZES[-1]

#: Turns until everything that is remembered of requests is full, and what repeats is known.
WARM_UP = 400

Clock = Callable[[], float]


class _Sink(asyncio.Transport):
    """The transport of a connection whose client takes everything at once; `answers` counts for all of them."""

    def __init__(self, answers: list[int]) -> None:
        super().__init__()
        self._answers = answers
        self.last = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._answers[0] += 1
        self.last = bytes(data)

    def is_closing(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.Protocol()  # not that of the connection: its timer looks no further


class Door:
    """Connections of the fast door over a fake device; on the running event loop, which is the dispatcher's too."""

    def __init__(self, clock: Clock) -> None:
        model = spec()
        fake = device(model, clock)
        self._dispatcher = fake.dispatcher
        inference = Inference(_engine(fake, model, clock), Access(None, ""), InFlight(8192, 1 << 30, 1 << 26), 1 << 26)
        config = uvicorn.Config(_no_application, http=FastPathProtocol, ws="none", access_log=False, log_config=None)
        state, self._answers = ServerState(), [0]
        state.default_headers = [(b"date", b"Mon, 30 Nov 2026 00:00:00 GMT"), (b"server", b"uvicorn")]
        self._sinks = [_Sink(self._answers) for _ in range(CONNECTIONS)]
        self._connections = []
        for sink in self._sinks:
            connection = FastPathProtocol(config, state, {"inference_handler": inference}, asyncio.get_running_loop())
            connection.connection_made(sink)
            self._connections.append(connection)
        call = infer_call("m", {"x": random_rows(1, WIDTH)})
        self._request = head_of(call) + call.body

    async def turns(self, times: int) -> None:
        """So many turns, one after the other."""
        for _ in range(times):
            await self._turn()

    async def _turn(self) -> None:
        """One request on every connection, and its answer."""
        wanted = self._answers[0] + CONNECTIONS
        for connection in self._connections:
            connection.data_received(self._request)
        for _ in range(3):  # the turns of the loop until the dispatcher is woken
            await asyncio.sleep(0)
        while self._answers[0] < wanted:
            self._dispatcher.step()
            await asyncio.sleep(0)

    @property
    def last(self) -> bytes:
        """The latest answer on one of the connections."""
        return self._sinks[0].last


async def _no_application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("every request is one for inference")


def spec() -> ModelSpec:
    """A model whose answer is its input, compiled as small models are."""
    inputs, outputs = (TensorSpec("x", "FP32", (-1, WIDTH), 0),), (TensorSpec("y", "FP32", (-1, WIDTH), 0),)
    return ModelSpec("m", inputs, outputs, (Variant("default", DEFAULT_SIZES, {}),), inputs, outputs)


@dataclass(frozen=True)
class Device:
    """A fake device with the model `m`, and all that runs it; the thread of the dispatcher does not."""

    backend: FakeBackend
    weights: WeightCache
    executor: Executor
    dispatcher: Dispatcher


def device(model: ModelSpec, clock: Clock) -> Device:
    """One that holds the weights of this model, whose sizes all cost the same: the more rows together the better."""
    backend = FakeBackend()
    weights, entry = WeightCache(backend, RuntimeConfig()), CacheEntry(Path(__file__), "plain", 1)
    weights.add("m", entry, model, None)
    weights.put("m", backend.prepare(entry, model), 0.5, -1.0)
    executor, scheduler = Executor(weights, clock), Scheduler[PendingRequest](SchedulerConfig())
    executor.add_model("m", model, None)
    scheduler.add_model("m", model, ModelPolicy())
    for size in model.sizes("default"):
        scheduler.seed_cost("m", "default", size, 1e-3, 0.0)
    return Device(backend, weights, executor, Dispatcher(scheduler, executor, clock))


def _engine(fake: Device, model: ModelSpec, clock: Clock) -> Engine:
    """The other parts as `app.main` puts them together; no thread runs."""
    dispatcher, executor, registry, config = fake.dispatcher, fake.executor, ModelRegistry(), SchedulerConfig()
    bundle = Bundle(Path(__file__), model, Hooks(), "", None)
    registry.put(ModelEntry("m", ModelState.READY, generation=Generation("m", bundle)))
    keeper = ResidencyKeeper(fake.backend, fake.weights, dispatcher, clock, 0, external=False)
    executor.rebuild = keeper.rebuild
    loader = Loader(fake.backend)
    control = Control(dispatcher, executor, fake.weights, keeper, registry, loader, lambda _: ModelPolicy(), clock)
    tuning = Tuning(dispatcher, executor, fake.weights, keeper, registry, external=False)
    watcher = RepositoryWatcher([], ["*"], ["*"], control, poll_seconds=None, on_started=lambda _: None)
    hooks, metas = HookPool("hook", 1), HookPool("meta", 1)
    return Engine(dispatcher, control, tuning, registry, watcher, hooks, metas, clock, config)


async def opcodes(door: Door) -> Counter[str]:
    """Bytecode instructions of one turn, by function: they tell two versions apart where times are too noisy."""
    found: Counter[str] = Counter()
    names: dict[CodeType, str] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            code = frame.f_code
            if code not in names:
                names[code] = f"{Path(code.co_filename).stem}.{code.co_qualname}"
            found[names[code]] += 1
        return trace

    sys.settrace(trace)
    await door.turns(1)
    sys.settrace(None)
    return found


async def measure(rounds: int, count: int, functions: int) -> list[float]:
    """Microseconds of processor time per request, of each round of so many turns; the dearest functions are printed."""
    door = Door(time.monotonic)
    await door.turns(WARM_UP)
    if not door.last.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"an answer is not what it should be: {door.last!r}")
    if functions:
        found = await opcodes(door)
        print(f"{found.total() / CONNECTIONS:8.1f} bytecode instructions per request, those of a dispatch shared")
        for name, times in found.most_common(functions):
            print(f"{times / CONNECTIONS:8.1f} {name}")
    gc.collect()
    gc.freeze()  # as the server does
    gc.set_threshold(10_000)
    seconds = []
    for _ in range(rounds):
        begun = time.process_time()
        await door.turns(count)
        seconds.append(time.process_time() - begun)
    return [each / (count * CONNECTIONS) * 1e6 for each in seconds]


def main(argv: Sequence[str] | None = None) -> int:
    """Print microseconds per request; there is no limit, since they are those of this machine."""
    parser = argparse.ArgumentParser(
        prog="python -m load_tests door", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=1000, help=f"of {CONNECTIONS} requests each, in one round (1000)")
    parser.add_argument("--opcodes", type=int, default=0, metavar="N", help="also the N functions that take most")
    options = parser.parse_args(argv)
    print(machine())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        each = runner.run(measure(options.rounds, options.turns, options.opcodes))
    return verdict(True, f"{spread(each, '.1f')} µs of processor time per request, {min(each):.1f} at best")


if __name__ == "__main__":
    sys.exit(main())
