"""One measurement: a workload against one server, once."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from load_tests.client import Plan, Seen
from load_tests.crew import drive, usual_processes
from load_tests.figures import Run, figures
from load_tests.observe import Observed, Observer
from load_tests.processes import Server
from load_tests.wire import InferCall, head_of, infer_call, random_inputs
from load_tests.workload import Call, Workload

#: About so many Server-Timing headers are kept of a run.
SAMPLES = 50_000

#: Highest closed-loop rate that is reckoned with when samples are spaced.
_FASTEST = 30_000

Tick = Callable[[float], None]


def _nothing(_: float) -> None:
    return


def requests_for(server: Server, workload: Workload) -> tuple[bytes, ...]:
    """Each call of a workload as bytes, made to what the server says of its models. Raises `ValueError`."""
    metadata = {call.model: describe(server, call.model) for call in workload.calls}
    host = urlsplit(server.url).netloc
    extra = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    requests = []
    for call in workload.calls:
        made = _call(call, metadata[call.model])
        due = {"X_Request_Timeout_Ms": str(max(1, round(call.deadline_ms)))} if call.deadline_ms is not None else {}
        requests.append(head_of(made, host, **extra, **due) + made.body)
    return tuple(requests)


def describe(server: Server, model: str) -> dict[str, Any]:
    """The metadata of a model. Raises `ValueError` when the server does not give it."""
    try:
        metadata: dict[str, Any] = json.loads(server.get(f"/v2/models/{quote(model, safe='')}"))
    except OSError as error:
        raise ValueError(f"model {model!r} at {server.url}: {error}") from error
    return metadata


def digests(server: Server, models: Sequence[str]) -> dict[str, dict[str, str]]:
    """By model, what its metadata says of its content and of its effective settings; empty where it says nothing."""
    found = {}
    for model in dict.fromkeys(models):
        properties = describe(server, model).get("properties", {})
        found[model] = {name: properties.get(name, "") for name in ("digest", "policy_digest")}
    return found


def measure(
    workload: Workload,
    server: Server,
    requests: Sequence[bytes],
    processes: int | None = None,
    tick: Tick = _nothing,
    round_: int = 0,
) -> Run:
    """Carry a workload out once. Of an open loop, the same `round_` gives the same arrivals."""
    seen, observed, seconds = observe(workload, server, plans(workload, server, requests, processes, round_), tick)
    return figures(workload, seconds, seen, observed)


def observe(
    workload: Workload, server: Server, each: Sequence[Plan], tick: Tick = _nothing
) -> tuple[list[Seen], Observed, float]:
    """Carry plans out under the eyes of an observer; what clients and observer saw, and how long it took."""
    observer = Observer(server, list(dict.fromkeys(call.model for call in workload.calls)))

    def look(seconds: float) -> None:
        observer.tick(seconds)
        tick(seconds)

    seen = drive(each, observer.begin, look)
    seconds = workload.seconds
    if each[0].stop_after is not None:
        seconds = min(seconds, max(one.wall_seconds for one in seen))
    return seen, observer.end(), seconds


def warm_up(workload: Workload, server: Server, requests: Sequence[bytes], processes: int | None = None) -> None:
    """The same for a while, for nothing: costs are learned, caches filled, connections known."""
    if workload.warmup_seconds:
        short = workload.model_copy(update={"seconds": workload.warmup_seconds})
        drive(plans(short, server, requests, processes, round_=-1), lambda: None, _nothing)


def plans(
    workload: Workload, server: Server, requests: Sequence[bytes], processes: int | None, round_: int = 0
) -> list[Plan]:
    """The work of every process. Arrivals are dealt in turn, connections evenly."""
    rng = np.random.default_rng([workload.seed, round_ + 1])
    address = urlsplit(server.url)
    if address.scheme != "http" or address.hostname is None:
        raise ValueError(f"{server.url}: only http:// can be driven")
    times = workload.arrivals.times(workload.seconds, rng)
    count = min(processes or usual_processes(), workload.arrivals.most)
    expected = len(times) if times is not None else int(workload.seconds * _FASTEST)
    which = workload.mixture(len(times) if times is not None else 4096, rng)
    plan = Plan(
        address.hostname, address.port or 80, tuple(requests), which, 1, workload.seconds, times,
        sample=max(1, ceil(expected / SAMPLES)),
    )  # fmt: skip
    dealt = []
    for place in range(count):
        connections = workload.arrivals.most // count + (place < workload.arrivals.most % count)
        own = None if times is None else times[place::count]
        dealt.append(replace(plan, which=which[place::count], connections=connections, times=own))
    return dealt


def _call(call: Call, metadata: Mapping[str, Any]) -> InferCall:
    if call.inputs is not None:
        with np.load(call.inputs) as file:
            return infer_call(call.model, dict(file))
    made = random_inputs(metadata, call.rows, call.extents)
    datatypes = {name: datatype for name, (datatype, _) in made.items()}
    return infer_call(call.model, {name: values for name, (_, values) in made.items()}, datatypes)
