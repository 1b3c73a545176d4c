"""The series that a scraper reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.domain.errors import ExecutionFailed
from app.runtime.accounts import DROP_REASONS

pytestmark = pytest.mark.anyio

COUNTERS = {
    "worker_dispatch_total", "worker_compute_seconds_total", "worker_requests_served_total",
    "worker_rows_served_total", "worker_padded_rows_total", "worker_requests_total", "worker_drops_total",
    "worker_dispatch_batch_rows_bucket", "worker_dispatch_batch_rows_count", "worker_dispatch_batch_rows_sum",
    "worker_request_latency_seconds_bucket", "worker_request_latency_seconds_count",
    "worker_request_latency_seconds_sum",
}  # fmt: skip
GAUGES = {
    "worker_queue_depth", "worker_queue_wait_seconds", "worker_model_max_batch_size", "worker_share_target",
    "worker_share_actual", "worker_model_resident", "worker_model_weight_bytes", "worker_inflight_requests",
}  # fmt: skip
NODE = {
    "worker_info", "worker_resident_weight_bytes", "worker_device_memory_in_use_bytes",
    "worker_device_memory_limit_bytes", "worker_hook_pool_depth", "worker_share_wait_seconds_max",
}  # fmt: skip


@pytest.fixture
def scrape(api, stage):
    """The samples by name: a list of (labels, value)."""

    async def samples():
        stage.settle()
        answer = await api.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    return samples


def value(samples, name, **labels):
    """The one sample of that name and these labels."""
    [found] = [value for given, value in samples[name] if labels.items() <= given.items()]
    return found


async def test_the_text_has_one_help_and_one_type_per_family_and_no_series_twice(api, stage):
    stage.load("a")
    stage.load("b")
    await api.infer([1], name="a")
    await api.get("/v2")
    lines = (await api.get("/metrics")).text.splitlines()
    for kind in ("# HELP ", "# TYPE "):
        names = [line.split()[2] for line in lines if line.startswith(kind)]
        assert len(names) == len(set(names))
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))


async def test_series_come_at_zero_with_a_model_and_go_with_it(scrape, stage):
    before = await scrape()
    assert not (COUNTERS | GAUGES) & before.keys()
    stage.load()
    loaded = await scrape()
    assert before.keys() >= NODE
    assert loaded.keys() >= NODE | COUNTERS | GAUGES
    for name in COUNTERS | GAUGES:
        assert all(labels["model"] == "m" and labels["worker"] == "worker-1" for labels, _ in loaded[name])
    for name in COUNTERS:
        assert {sample for _, sample in loaded[name]} == {0.0}, name
    assert {labels["status"] for labels, _ in loaded["worker_requests_total"]} == {"ok", "failed", "dropped"}
    assert {labels["reason"] for labels, _ in loaded["worker_drops_total"]} == set(DROP_REASONS.values())
    assert {labels["quantile"] for labels, _ in loaded["worker_queue_wait_seconds"]} == {"0.5", "0.99"}
    stage.control.unload_model("m").result(30)
    assert not (COUNTERS | GAUGES) & (await scrape()).keys()


async def test_the_node_says_how_it_runs(scrape):
    [(labels, one)] = (await scrape())["worker_info"]
    assert one == 1
    assert (labels["discipline"], labels["control_mode"]) == ("fifo", "dynamic")
    assert (labels["residency_mode"], labels["backend"]) == ("self_managed", "fake")


async def test_every_series_of_ours_names_the_device(scrape, stage):
    stage.load()
    samples = await scrape()
    for name in COUNTERS | GAUGES | NODE:
        assert {labels["gpu"] for labels, _ in samples[name]} == {"7"}, name


async def test_what_went_in_came_out_in_one_way(api, scrape, stage):
    stage.load()
    for rows in ([1], [1, 2, 3], list(range(9))):  # alone, padded, cut into three
        assert (await api.infer(rows)).status_code == 200
    assert (await api.infer([])).status_code == 400
    assert (await api.post("/v2/models/m/infer", content=b"{")).status_code == 400
    stage.backend.fail_next(ExecutionFailed("boom"))
    assert (await api.infer([1])).status_code == 500
    assert (await api.infer([1], parameters={"timeout": 1})).status_code == 504
    samples = await scrape()
    outcomes = {
        status: value(samples, "worker_requests_total", status=status) for status in ("ok", "failed", "dropped")
    }
    assert outcomes == {"ok": 3, "failed": 3, "dropped": 1}
    assert sum(sample for _, sample in samples["worker_drops_total"]) == 1
    assert value(samples, "worker_inflight_requests") == 0
    assert value(samples, "worker_request_latency_seconds_count") == 7
    assert value(samples, "worker_dispatch_total") == 5
    assert value(samples, "worker_requests_served_total") == 5
    assert value(samples, "worker_rows_served_total") == 13
    assert value(samples, "worker_padded_rows_total") == 1
    assert value(samples, "worker_dispatch_batch_rows_count") == 5
    assert value(samples, "worker_dispatch_batch_rows_sum") == 13
    assert value(samples, "worker_dispatch_batch_rows_bucket", le="1") == 2
    assert value(samples, "worker_dispatch_batch_rows_bucket", le="4") == 5

    [model] = (await api.get("/status")).json()["models"]
    serving = model["serving"]
    assert serving["accepted"] == sum(outcomes.values()) + serving["in_flight"] == 7
    dropped = {labels["reason"]: sample for labels, sample in samples["worker_drops_total"] if sample}
    assert (serving["ok"], serving["failed"], serving["dropped"]) == (3, 3, dropped)
    assert serving["compute_seconds"] == pytest.approx(value(samples, "worker_compute_seconds_total"))


async def test_histograms_are_cumulative_and_end_in_their_count(api, scrape, stage):
    stage.load()
    for rows in ([1], [1, 2]):
        await api.infer(rows)
    samples = await scrape()
    for name in ("worker_request_latency_seconds", "worker_dispatch_batch_rows"):
        buckets = samples[f"{name}_bucket"]
        bounds = [float(labels["le"]) for labels, _ in buckets]
        counts = [sample for _, sample in buckets]
        assert bounds == sorted(bounds)
        assert counts == sorted(counts)
        assert bounds[-1] == float("inf")
        assert counts[-1] == value(samples, f"{name}_count") == 2


async def test_a_renamed_model_goes_on_counting_under_its_new_name(api, scrape, stage):
    stage.load("old")
    await api.infer([1], name="old")
    stage.control.rename_models([("old", "new")]).result(30)
    samples = await scrape()
    assert value(samples, "worker_requests_total", model="new", status="ok") == 1
    assert value(samples, "worker_dispatch_total", model="new") == 1
    assert {labels["model"] for labels, _ in samples["worker_dispatch_total"]} == {"new"}


async def test_a_model_that_cannot_serve_has_no_series_and_an_unknown_name_is_no_label(api, scrape, stage):
    stage.control.announce(["idle"], [], lambda names: None)
    assert (await api.infer([1], name="made-up")).status_code == 404
    text = str(await scrape())
    assert "made-up" not in text
    assert "'idle'" not in text


async def test_other_routes_are_counted_by_their_template_and_inference_is_not(api, scrape, stage):
    stage.load()
    await api.infer([1])
    await api.get("/v2/models/m")
    await api.get("/v2/models/some-other-name")
    await api.get("/nowhere/at/all")
    handlers = {labels["handler"] for labels, _ in (await scrape())["http_requests_total"]}
    assert "/v2/models/{model}" in handlers
    assert not any("infer" in handler or "some" in handler or "nowhere" in handler for handler in handlers)
