"""Prometheus: plain counters, read when scraped, so that serving never touches a metric.

The text is written by hand, a family at a time: made of the client library's objects it took 0.7 ms of the event loop
for each model. The library and the instrumentator only count the other routes.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_fastapi_instrumentator import Instrumentator

from app.api.journal import Journal
from app.engine.status import NodeStatus, Serving
from app.engine.status_reader import StatusReader
from app.runtime.accounts import DROP_REASONS, LATENCY_BOUNDS, STAGE_BOUNDS, STAGES
from app.scheduling.stats import GAP_BOUNDS

Value = Callable[[Serving], float]
#: (value of the further label, value of the sample) of each series of one model.
Labelled = Callable[[Serving], Iterable[tuple[str, float]]]
#: (value of the further label, counts per bucket, sum) of each histogram of one model; one of no label has "".
Histograms = Callable[[Serving], Iterable[tuple[str, Sequence[int], float]]]

_REASONS = sorted(set(DROP_REASONS.values()))

COUNTERS: Mapping[str, tuple[str, Value]] = {
    "worker_dispatch_total": ("Executions", lambda s: s.dispatches),
    # A meta model's time is that of the models it calls, which count it: together they never exceed the clock.
    "worker_compute_seconds_total": (
        "Device time of the executions, those for meta models included",
        lambda s: s.compute_seconds if s.dispatches else 0.0,
    ),
    "worker_requests_served_total": ("Requests and pieces that were executed", lambda s: s.requests),
    "worker_rows_served_total": ("Rows that were executed, without padding", lambda s: s.rows),
    "worker_padded_rows_total": ("Rows that filled up batches", lambda s: s.padded_rows),
    "worker_weight_loads_total": ("Times the weights were brought to the device", lambda s: s.weight_loads),
    "worker_weight_evicts_total": ("Times the weights left the device", lambda s: s.weight_evicts),
    "worker_weight_load_seconds_total": ("Time that bringing the weights took", lambda s: s.weight_load_seconds),
    "worker_fallbacks_total": ("Requests handed to the fallback model", lambda s: s.diverted),
}

GAUGES: Mapping[str, tuple[str, Value]] = {
    "worker_queue_depth": ("Requests and pieces in the queue", lambda s: s.queue_depth),
    "worker_model_max_batch_size": ("Most rows merged into one dispatch", lambda s: s.max_batch_size or 1),
    "worker_share_target": ("Share of device time by weight", lambda s: s.share_target),
    "worker_share_actual": ("Share of recent device time", lambda s: s.share_actual),
    "worker_model_resident": ("1 when the weights are on the device", lambda s: float(s.resident)),
    "worker_model_pinned": (
        "1 when the weights never leave the device",
        lambda s: float(s.residency_floor == "device"),
    ),
    "worker_model_weight_bytes": ("Bytes of weights", lambda s: s.weight_bytes),
    "worker_inflight_requests": ("Requests accepted and not yet ended", lambda s: s.in_flight),
}

#: name → (type, help, further label, its values and samples)
LABELLED: Mapping[str, tuple[str, str, str, Labelled]] = {
    "worker_queue_wait_seconds": (
        "summary",  # by the rules of the format only a summary has quantiles
        "Queue wait of the latest requests",
        "quantile",
        lambda s: (("0.5", s.wait_p50), ("0.99", s.wait_p99)),
    ),
    "worker_requests_total": (
        "counter",
        "Requests by outcome",
        "status",
        lambda s: (("ok", s.ok), ("failed", s.failed), ("dropped", sum(s.dropped.values()))),
    ),
    "worker_drops_total": (
        "counter",
        "Requests that were given up",
        "reason",
        lambda s: [(reason, s.dropped.get(reason, 0)) for reason in _REASONS],
    ),
    "worker_model_provider": (
        "gauge",
        "1 for what runs the model",
        "provider",
        lambda s: ((s.provider, 1),) if s.provider else (),
    ),
}

#: Upper bounds of the histogram of rows per dispatch.
ROWS_BOUNDS = tuple(2**power for power in range(11))

#: name → (help, further label or "", upper bounds, histograms)
HISTOGRAMS: Mapping[str, tuple[str, str, Sequence[float], Histograms]] = {
    "worker_request_latency_seconds": (
        "From complete headers to the answer",
        "",
        LATENCY_BOUNDS,
        lambda s: (("", s.latency_buckets, s.latency_sum),),
    ),
    "worker_stage_seconds": (
        "Time of answered requests in each stage that they had",
        "stage",
        STAGE_BOUNDS,
        lambda s: zip(STAGES, s.stage_buckets, s.stage_sums, strict=True),
    ),
    "worker_dispatch_batch_rows": ("Rows of an execution", "", ROWS_BOUNDS, lambda s: (("", _rows(s), s.rows),)),
    "worker_dispatch_gap_seconds": (
        "Idle time of the device before an execution whose work waited",
        "",
        GAP_BOUNDS,
        lambda s: (("", s.gap_buckets, s.gap_seconds),),
    ),
}

#: name → (type, help, value)
NODE: Mapping[str, tuple[str, str, Callable[[NodeStatus], float]]] = {
    "worker_resident_weight_bytes": ("gauge", "Bytes of weights on the device", lambda n: n.resident_weight_bytes),
    "worker_device_memory_in_use_bytes": ("gauge", "Device memory in use", lambda n: n.device_memory_in_use_bytes),
    "worker_device_memory_limit_bytes": (
        "gauge",
        "Device memory that may be used",
        lambda n: n.device_memory_limit_bytes,
    ),
    "worker_hook_pool_depth": ("gauge", "Jobs in the hook pool", lambda n: n.hook_pool_depth),
    "worker_share_wait_seconds_max": (
        "gauge",
        "Longest wait between two dispatches of a model with a share of a tenth or more",
        lambda n: n.share_wait_seconds_max,
    ),
    "worker_device_busy_seconds_total": (
        "counter",
        "Time in which the device executed, failures included",
        lambda n: n.device_busy_seconds,
    ),
    "worker_compactions_total": ("counter", "Compactions of the device", lambda n: n.compactions),
}

#: Models whose histograms are written in one turn of the event loop: a millisecond.
AT_ONCE = 32

Models = Sequence[tuple[str, Serving]]


def install(app: FastAPI, status: StatusReader, journal: Journal, worker: str) -> None:
    """Add `/metrics`, and the instrumentation of every route but inference."""
    registry = CollectorRegistry()
    Instrumentator(excluded_handlers=["/metrics", "/v2/models/.*/infer"], registry=registry).instrument(app)

    @app.get("/metrics", tags=["operations"], summary="Prometheus metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        text = []
        node = await status.read_in_turns()
        for family in render(node, worker):
            text.append(family)
            await asyncio.sleep(0)  # requests go between
        text.append(render_refusals(node, journal.refusals, worker))
        return Response("".join(text).encode() + generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def render(node: NodeStatus, worker: str) -> Iterator[str]:
    """The text in pieces, family after family: the node's, and those of every model that serves."""
    place = _place(node, worker)
    known = {each.name: each for model in node.models for each in (*model.parts, model)}
    models = [
        (f'model="{quoted(name)}",{place}', model.serving)
        for name, model in sorted(known.items())
        if model.serving is not None
    ]
    yield _info(node, place)
    for name, (kind, text, read) in NODE.items():
        yield f"{_head(name, kind, text)}{name}{{{place}}} {read(node)}\n"
    for kind, table in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, (text, value) in table.items():
            samples = [f"{name}{{{labels}}} {value(each)}\n" for labels, each in models]
            yield _head(name, kind, text) + "".join(samples)
    for name, (kind, text, label, series) in LABELLED.items():
        samples = [
            f'{name}{{{labels},{label}="{which}"}} {value}\n'
            for labels, each in models
            for which, value in series(each)
        ]
        yield _head(name, kind, text) + "".join(samples)
    for name, (text, label, bounds, histograms) in HISTOGRAMS.items():
        yield _head(name, "histogram", text)
        for at in range(0, len(models), AT_ONCE):
            yield "".join(_histograms(name, label, bounds, histograms, models[at : at + AT_ONCE]))


def render_refusals(node: NodeStatus, refusals: Mapping[str, int], worker: str) -> str:
    """The family of requests that are in no model's account: they never got so far."""
    name, place = "worker_refusals_total", _place(node, worker)
    samples = [f'{name}{{code="{quoted(code)}",{place}}} {count}\n' for code, count in sorted(refusals.items())]
    return _head(name, "counter", "Inference requests refused before any model took them") + "".join(samples)


def _place(node: NodeStatus, worker: str) -> str:
    return f'gpu="{quoted(node.device)}",worker="{quoted(worker)}"'


def quoted(value: str) -> str:
    """The value of a label as it stands between quotes."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _info(node: NodeStatus, place: str) -> str:
    how = "".join(
        f',{label}="{quoted(str(getattr(node, label)))}"'
        for label in ("discipline", "control_mode", "residency_mode", "backend")
    )
    return f"{_head('worker_info', 'gauge', 'How this worker runs')}worker_info{{{place}{how}}} 1\n"


def _histograms(
    name: str, label: str, bounds: Sequence[float], histograms: Histograms, models: Models
) -> Iterator[str]:
    edges = [*map(str, bounds), "+Inf"]
    for labels, serving in models:
        for which, counts, total in histograms(serving):
            series = f'{labels},{label}="{which}"' if label else labels
            below = 0
            for edge, count in zip(edges, counts, strict=True):
                below += count
                yield f'{name}_bucket{{{series},le="{edge}"}} {below}\n'
            yield f"{name}_sum{{{series}}} {total}\n{name}_count{{{series}}} {below}\n"


def _rows(serving: Serving) -> list[int]:
    counts = [0] * (len(ROWS_BOUNDS) + 1)
    for rows, times in serving.batch_rows.items():
        counts[bisect_left(ROWS_BOUNDS, rows)] += times
    return counts
