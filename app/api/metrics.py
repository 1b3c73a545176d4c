"""Prometheus: plain counters, read when scraped, so that serving never touches a metric."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator

from app.engine.status import ModelStatus, NodeStatus, Serving, StatusReader
from app.runtime.accounts import DROP_REASONS, LATENCY_BOUNDS
from app.scheduling.stats import GAP_BOUNDS

Value = Callable[[Serving], float]

COUNTERS: Mapping[str, tuple[str, Value]] = {
    "worker_dispatch": ("Executions", lambda s: s.dispatches),
    "worker_compute_seconds": ("Device time of the executions", lambda s: s.compute_seconds),
    "worker_requests_served": ("Requests and pieces that were executed", lambda s: s.requests),
    "worker_rows_served": ("Rows that were executed, without padding", lambda s: s.rows),
    "worker_padded_rows": ("Rows that filled up batches", lambda s: s.padded_rows),
    "worker_weight_loads": ("Times the weights were brought to the device", lambda s: s.weight_loads),
    "worker_weight_evicts": ("Times the weights left the device", lambda s: s.weight_evicts),
    "worker_weight_load_seconds": ("Time that bringing the weights took", lambda s: s.weight_load_seconds),
    "worker_fallbacks": ("Requests handed to the fallback model", lambda s: s.diverted),
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

NODE_GAUGES: Mapping[str, tuple[str, Callable[[NodeStatus], float]]] = {
    "worker_resident_weight_bytes": ("Bytes of weights on the device", lambda n: n.resident_weight_bytes),
    "worker_device_memory_in_use_bytes": ("Device memory in use", lambda n: n.device_memory_in_use_bytes),
    "worker_device_memory_limit_bytes": ("Device memory that may be used", lambda n: n.device_memory_limit_bytes),
    "worker_hook_pool_depth": ("Jobs in the hook pool", lambda n: n.hook_pool_depth),
    "worker_share_wait_seconds_max": (
        "Longest wait between two dispatches of a model with a share of a tenth or more",
        lambda n: n.share_wait_seconds_max,
    ),
}


#: Upper bounds of the histogram of rows per dispatch.
ROWS_BOUNDS = tuple(2**power for power in range(11))


class StatusCollector(Collector):
    """Turns the node's status into samples. Runs on the event loop."""

    def __init__(self, status: StatusReader, worker: str) -> None:
        self._status = status
        self._worker = worker

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked for collisions before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every series of every model that serves."""
        node = self._status.read()
        place = [node.device, self._worker]
        serving = [(model, model.serving) for model in node.models if model.serving is not None]
        yield self._info(node, place)
        for name, (text, read) in NODE_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["gpu", "worker"])
            gauge.add_metric(place, read(node))
            yield gauge
        compactions = CounterMetricFamily("worker_compactions", "Compactions of the device", labels=["gpu", "worker"])
        compactions.add_metric(place, node.compactions)
        yield compactions
        for name, (text, value) in COUNTERS.items():
            yield _family(CounterMetricFamily(name, text, labels=_LABELS), serving, place, value)
        for name, (text, value) in GAUGES.items():
            yield _family(GaugeMetricFamily(name, text, labels=_LABELS), serving, place, value)
        yield _waits(serving, place)
        yield _outcomes(serving, place)
        yield _drops(serving, place)
        yield _latency(serving, place)
        yield _batch_rows(serving, place)
        yield _gaps(serving, place)

    def _info(self, node: NodeStatus, place: list[str]) -> Metric:
        labels = ["gpu", "worker", "discipline", "control_mode", "residency_mode", "backend"]
        info = GaugeMetricFamily("worker_info", "How this worker runs", labels=labels)
        info.add_metric([*place, node.discipline, node.control_mode, node.residency_mode, node.backend], 1)
        return info


def install(app: FastAPI, status: StatusReader, worker: str) -> None:
    """Add `/metrics`, and the instrumentation of every route but inference."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status, worker))
    Instrumentator(excluded_handlers=["/metrics", "/v2/models/.*/infer"], registry=registry).instrument(app)

    @app.get("/metrics", tags=["operations"], summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


_LABELS = ["model", "gpu", "worker"]

Models = list[tuple[ModelStatus, Serving]]

Family = CounterMetricFamily | GaugeMetricFamily


def _family(family: Family, models: Models, place: list[str], value: Value) -> Metric:
    for model, serving in models:
        family.add_metric([model.name, *place], value(serving))
    return family


def _waits(models: Models, place: list[str]) -> Metric:
    gauge = GaugeMetricFamily(
        "worker_queue_wait_seconds", "Queue wait of the latest requests", labels=[*_LABELS, "quantile"]
    )
    for model, serving in models:
        gauge.add_metric([model.name, *place, "0.5"], serving.wait_p50)
        gauge.add_metric([model.name, *place, "0.99"], serving.wait_p99)
    return gauge


def _outcomes(models: Models, place: list[str]) -> Metric:
    counter = CounterMetricFamily("worker_requests", "Requests by outcome", labels=[*_LABELS, "status"])
    for model, serving in models:
        counter.add_metric([model.name, *place, "ok"], serving.ok)
        counter.add_metric([model.name, *place, "failed"], serving.failed)
        counter.add_metric([model.name, *place, "dropped"], sum(serving.dropped.values()))
    return counter


def _drops(models: Models, place: list[str]) -> Metric:
    counter = CounterMetricFamily("worker_drops", "Requests that were given up", labels=[*_LABELS, "reason"])
    for model, serving in models:
        for reason in sorted(set(DROP_REASONS.values())):
            counter.add_metric([model.name, *place, reason], serving.dropped.get(reason, 0))
    return counter


def _batch_rows(models: Models, place: list[str]) -> Metric:
    histogram = HistogramMetricFamily("worker_dispatch_batch_rows", "Rows of an execution", labels=_LABELS)
    for model, serving in models:
        counts = serving.batch_rows.items()
        buckets = [
            (bound, float(sum(times for rows, times in counts if rows <= float(bound))))
            for bound in (*map(str, ROWS_BOUNDS), "+Inf")
        ]
        histogram.add_metric([model.name, *place], buckets, sum(rows * times for rows, times in counts))
    return histogram


def _latency(models: Models, place: list[str]) -> Metric:
    histogram = HistogramMetricFamily(
        "worker_request_latency_seconds", "From complete headers to the answer", labels=_LABELS
    )
    for model, serving in models:
        buckets = _cumulative(LATENCY_BOUNDS, serving.latency_buckets)
        histogram.add_metric([model.name, *place], buckets, serving.latency_sum)
    return histogram


def _gaps(models: Models, place: list[str]) -> Metric:
    histogram = HistogramMetricFamily(
        "worker_dispatch_gap_seconds", "Idle time of the device before an execution whose work waited", labels=_LABELS
    )
    for model, serving in models:
        histogram.add_metric([model.name, *place], _cumulative(GAP_BOUNDS, serving.gap_buckets), serving.gap_seconds)
    return histogram


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    return list(zip([*map(str, bounds), "+Inf"], map(float, accumulate(counts)), strict=True))
