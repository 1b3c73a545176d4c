"""What is counted: a program to be run under callgrind, which writes its counts down whenever `mark` is called.

Everything is fixed that could make two runs differ: how often, in which order, with which hash seed (the caller sets
it), without collections of garbage, and on a clock that is told.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np
import uvloop

from app.api.codec.reply import Encoder
from app.api.codec.request import Decoder
from app.domain.model import MergeKey, ModelSpec, Variant
from app.domain.tensors import TensorSpec
from app.runtime.pending import PendingRequest, threaded_future
from load_tests.decisions import ACTIVE, FAR, request, scheduler_with
from load_tests.door import Door, device
from load_tests.wire import InferCall, infer_call, random_rows

#: Of the C library, and called by nothing else: callgrind writes its counts down when it is entered.
MARK = "getloadavg"

#: Registered models, and requests in a dispatch.
MODELS, REQUESTS = 50, 8

#: How often each piece of work is done, and then twice as often: the difference is free of what the first ones cost.
TIMES: Mapping[str, int] = {
    "yardstick": 100,
    "decision": 150,
    "queueing": 300,
    "decode": 300,
    "decode of a new head": 100,
    "encode": 300,
    "dispatch": 100,
    "32 requests by HTTP": 16,
}

_WIDTH = 8

#: A piece of work with everything that it needs: that alone is counted.
Ready = Callable[[], None]


def mark() -> None:
    """Let callgrind write down what was counted since the last time, and begin anew."""
    os.getloadavg()


def yardstick(times: int) -> Ready:
    """Work that no change of the server touches: what this interpreter takes for calls, tables and small arrays."""
    row = np.arange(_WIDTH, dtype=np.float32)

    def step(number: int, **more: int) -> int:
        return number + sum(more.values())

    def run() -> None:
        for number in range(times):
            table = {f"key-{each}": step(each, a=1, b=number) for each in range(20)}
            ordered = sorted(table.items(), key=lambda pair: -pair[1])
            np.concatenate([row[None, :], row[None, :]])[:1].tobytes()
            json.dumps(ordered)

    return run


def decision(times: int) -> Ready:
    """Which model next, of ten with work; what was taken is recorded as run."""
    scheduler = scheduler_with(MODELS)
    for model in range(ACTIVE):
        scheduler.enqueue([request(model, 0.0, FAR + number) for number in range(4 * times)], 0.0)

    def run() -> None:
        for number in range(times):
            now = 0.01 * number
            dispatch = scheduler.next_decision(now).dispatch
            assert dispatch is not None
            scheduler.record(dispatch, 1e-3, now)

    return run


def queueing(times: int) -> Ready:
    """A request with a deadline is queued."""
    scheduler = scheduler_with(MODELS)
    requests = [request(number % ACTIVE, 0.0, FAR + number) for number in range(times)]

    def run() -> None:
        for each in requests:
            scheduler.enqueue((each,), 0.0)

    return run


def spec() -> ModelSpec:
    """A model whose answer is its input."""
    inputs, outputs = (TensorSpec("x", "FP32", (-1, _WIDTH), 0),), (TensorSpec("y", "FP32", (-1, _WIDTH), 0),)
    return ModelSpec("m", inputs, outputs, (Variant("default", (1, 2, 4, REQUESTS), {}),), inputs, outputs)


def _decoding(calls: Sequence[InferCall]) -> Ready:
    decoder, model = Decoder(), spec()

    def run() -> None:
        for call in calls:
            decoder.decode(call.body, call.headers["Inference-Header-Content-Length"], "m", model)

    return run


def decode(times: int) -> Ready:
    """A binary request like the one before."""
    return _decoding([infer_call("m", {"x": random_rows(1, _WIDTH)})] * times)


def decode_new(times: int) -> Ready:
    """A binary request whose head was never seen."""
    return _decoding([infer_call("m", {"x": random_rows(1, _WIDTH)}, mark=number) for number in range(times)])


def encode(times: int) -> Ready:
    """A binary answer of a shape that was seen before."""
    encoder, model = Encoder(), spec()
    call, outputs = infer_call("m", {"x": random_rows(1, _WIDTH)}), {"y": random_rows(1, _WIDTH)}
    asked = Decoder().decode(call.body, call.headers["Inference-Header-Content-Length"], "m", model)

    def run() -> None:
        for _ in range(times):
            encoder.encode(asked, "m", model, outputs)

    return run


def dispatch(times: int) -> Ready:
    """Eight requests of one row: queued, decided, assembled, run on a fake device, taken apart, recorded, answered."""
    clock = iter(range(1000 * times + 1000))

    def now() -> float:
        return next(clock) * 1e-3

    dispatcher, key, row = device(spec(), now).dispatcher, MergeKey("default"), {"x": random_rows(1, _WIDTH)}
    batches = [
        [PendingRequest("m", key, 1, 0.0, inf, row, threaded_future()) for _ in range(REQUESTS)] for _ in range(times)
    ]

    def run() -> None:
        for batch in batches:
            dispatcher.submit(batch, now())
            while not batch[-1].future.done():  # a size that is tried out now and then holds fewer
                dispatcher.step()

    return run


def http(times: int) -> Ready:
    """A request on each of 32 connections of the fast door: parsed, admitted, decoded, queued, run, encoded, answered.

    The counts are those of a multiple of 512 requests: so many are put into the histograms together.
    """
    clock = iter(range(10_000 * times + 10_000_000))
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    door = runner.run(_opened(lambda: next(clock) * 1e-6))

    def run() -> None:
        with runner:
            runner.run(door.turns(times))

    return run


async def _opened(now: Callable[[], float]) -> Door:
    door = Door(now)
    await door.turns(16)
    return door


WORK: Mapping[str, Callable[[int], Ready]] = {
    "yardstick": yardstick,
    "decision": decision,
    "queueing": queueing,
    "decode": decode,
    "decode of a new head": decode_new,
    "encode": encode,
    "dispatch": dispatch,
    "32 requests by HTTP": http,
}


def main(names: Sequence[str]) -> None:
    """Each piece of work a few times to warm up, then so many times, then twice as many; a mark before and after."""
    gc.disable()
    for name in names:
        prepare, times = WORK[name], TIMES[name]
        prepare(30)()
        for count in (times, 2 * times):
            run = prepare(count)
            mark()
            run()
            mark()


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(WORK))
