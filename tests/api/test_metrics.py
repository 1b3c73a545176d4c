"""The series that a scraper reads."""

import random
from collections import Counter

import pytest
from anyio import create_task_group, move_on_after, to_thread
from anyio.lowlevel import checkpoint
from prometheus_client.parser import text_string_to_metric_families

from app.api import metrics
from app.domain.errors import ExecutionFailed
from app.runtime.accounts import DROP_REASONS, STAGES

pytestmark = pytest.mark.anyio

COUNTERS = {
    "worker_dispatch_total", "worker_compute_seconds_total", "worker_requests_served_total",
    "worker_rows_served_total", "worker_padded_rows_total", "worker_requests_total", "worker_drops_total",
    "worker_weight_evicts_total", "worker_fallbacks_total",
    "worker_dispatch_batch_rows_bucket", "worker_dispatch_batch_rows_count", "worker_dispatch_batch_rows_sum",
    "worker_request_latency_seconds_bucket", "worker_request_latency_seconds_count",
    "worker_request_latency_seconds_sum",
    "worker_stage_seconds_bucket", "worker_stage_seconds_count", "worker_stage_seconds_sum",
    "worker_dispatch_gap_seconds_bucket", "worker_dispatch_gap_seconds_count", "worker_dispatch_gap_seconds_sum",
}  # fmt: skip
LOADED = {"worker_weight_loads_total", "worker_weight_load_seconds_total"}  # which loading has counted
GAUGES = {
    "worker_queue_depth", "worker_queue_wait_seconds", "worker_model_max_batch_size", "worker_share_target",
    "worker_share_actual", "worker_model_resident", "worker_model_pinned", "worker_model_weight_bytes",
    "worker_model_provider", "worker_inflight_requests",
}  # fmt: skip
OF_MODELS = COUNTERS | LOADED | GAUGES
NODE = {
    "worker_info", "worker_resident_weight_bytes", "worker_device_memory_in_use_bytes",
    "worker_device_memory_limit_bytes", "worker_hook_pool_depth", "worker_share_wait_seconds_max",
    "worker_device_busy_seconds_total", "worker_compactions_total",
}  # fmt: skip


@pytest.fixture
def scrape(api, stage):
    """The samples of a scrape once the dispatcher has booked what it ran."""

    async def samples():
        stage.settle()
        answer = await api.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return text_samples(answer.text)

    return samples


def text_samples(text):
    """The samples of a scrape by name: a list of (labels, value)."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


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
    assert {name for name in before if name.startswith("worker_")} == NODE
    stage.load()
    loaded = await scrape()
    assert {name for name in loaded if name.startswith("worker_")} == NODE | OF_MODELS
    for name in OF_MODELS:
        assert loaded[name]
        assert all(labels["model"] == "m" and labels["worker"] == "worker-1" for labels, _ in loaded[name])
    for name in COUNTERS:
        assert {sample for _, sample in loaded[name]} == {0.0}, name
    assert {labels["status"] for labels, _ in loaded["worker_requests_total"]} == {"ok", "failed", "dropped"}
    assert {labels["reason"] for labels, _ in loaded["worker_drops_total"]} == set(DROP_REASONS.values())
    assert {labels["quantile"] for labels, _ in loaded["worker_queue_wait_seconds"]} == {"0.5", "0.99"}
    assert {labels["stage"] for labels, _ in loaded["worker_stage_seconds_count"]} == set(STAGES)
    stage.control.unload_model("m").result(30)
    assert {name for name in await scrape() if name.startswith("worker_")} == NODE


async def test_the_node_says_how_it_runs(scrape):
    [(labels, one)] = (await scrape())["worker_info"]
    assert one == 1
    assert (labels["discipline"], labels["control_mode"]) == ("fifo", "dynamic")
    assert (labels["residency_mode"], labels["backend"]) == ("self_managed", "fake")


async def test_every_series_of_ours_names_the_device(scrape, stage):
    stage.load()
    samples = await scrape()
    for name in OF_MODELS | NODE:
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


async def test_what_runs_a_model_is_told(scrape, stage):
    stage.load()
    assert value(await scrape(), "worker_model_provider", model="m", provider="FakeExecutionProvider") == 1


async def test_answered_requests_count_in_the_stages_that_they_had_and_refused_ones_in_none(api, scrape, stage):
    stage.load()
    assert (await api.infer([1])).status_code == 200
    assert (await api.infer([])).status_code == 400
    samples = await scrape()
    counts = {labels["stage"]: count for labels, count in samples["worker_stage_seconds_count"]}
    assert counts == {
        "decode": 1, "preprocess": 0, "queue": 1, "load": 0, "compute": 1, "postprocess": 0, "encode": 1,
    }  # fmt: skip
    sums = {labels["stage"]: seconds for labels, seconds in samples["worker_stage_seconds_sum"]}
    latency = value(samples, "worker_request_latency_seconds_sum")
    assert 0 < sum(sums.values()) <= latency
    assert sums["compute"] == pytest.approx(value(samples, "worker_compute_seconds_total"))


async def test_the_device_is_busy_for_what_it_computes_and_for_what_fails_and_never_longer_than_time_passes(
    api, scrape, stage
):
    stage.load()
    begun = stage.clock()
    for rows in ([1], [1, 2, 3]):
        assert (await api.infer(rows)).status_code == 200
    before = await scrape()
    computed = value(before, "worker_compute_seconds_total")
    assert 0 < computed == pytest.approx(value(before, "worker_device_busy_seconds_total"))
    stage.backend.fail_next(ExecutionFailed("boom"))
    assert (await api.infer([1])).status_code == 500
    after = await scrape()
    assert value(after, "worker_compute_seconds_total") == computed
    assert computed < value(after, "worker_device_busy_seconds_total") <= stage.clock() - begun


async def test_queue_and_requests_in_flight_show_while_the_device_is_busy(api, scrape, stage):
    stage.load()
    hold = stage.hold_run()
    answers = []
    async with create_task_group() as group:

        async def ask():
            answers.append((await api.infer([1])).status_code)

        group.start_soon(ask)
        await to_thread.run_sync(hold.wait_entered)
        group.start_soon(ask)
        while (await api.get("/status")).json()["queue_depth"] == 0:
            await checkpoint()
        samples = text_samples((await api.get("/metrics")).text)
        assert (value(samples, "worker_queue_depth"), value(samples, "worker_inflight_requests")) == (1, 2)
        hold.open()
    assert answers == [200, 200]
    samples = await scrape()
    assert (value(samples, "worker_queue_depth"), value(samples, "worker_inflight_requests")) == (0, 0)


async def test_one_request_counts_once(api, scrape, stage):
    stage.load()
    await api.infer([1])
    samples = await scrape()
    assert sum(count for _, count in samples["worker_requests_total"]) == 1
    assert value(samples, "worker_request_latency_seconds_count") == 1
    assert value(samples, "worker_requests_served_total") == 1


def test_a_worker_may_have_any_name(stage):
    worker = 'a"b\\c\nd,e}'
    text = "".join(metrics.render(stage.status().read(), worker))
    assert {labels["worker"] for samples in text_samples(text).values() for labels, _ in samples} == {worker}


async def test_many_models_are_all_there_whatever_is_written_at_once(api, scrape, stage, monkeypatch):
    monkeypatch.setattr(metrics, "AT_ONCE", 2)
    for name in "abcde":
        stage.load(name)
    samples = await scrape()
    for name in OF_MODELS:
        assert {labels["model"] for labels, _ in samples[name]} == set("abcde"), name


META = """format_version: "1"
kind: meta
calls: [m]
client_inputs: [{name: x, dtype: FP32, shape: nc, dims: {c: 3}}]
client_outputs: [{name: y, dtype: FP32, shape: nc, dims: {c: 3}}]
"""


async def test_a_failed_meta_model_counts_once_there_and_its_time_once_where_it_ran(api, scrape, stage):
    stage.load()
    path = stage.root / "meta"
    path.mkdir()
    (path / "manifest.yaml").write_text(META)
    (path / "hooks.py").write_text("def run(inputs, call):\n    return call('m', dict(inputs))\n")
    stage.control.load_model("meta", path).result(30)
    assert (await api.infer([1], name="meta")).status_code == 200
    stage.backend.fail_next(ExecutionFailed("boom"))
    answer = await api.infer([1], name="meta")
    assert (answer.status_code, answer.json()["code"]) == (500, "execution_failed")
    samples = await scrape()
    outcomes = {
        (labels["model"], labels["status"]): count for labels, count in samples["worker_requests_total"] if count
    }
    assert outcomes == {("meta", "ok"): 1, ("meta", "failed"): 1}
    assert value(samples, "worker_dispatch_total", model="m") == 1
    assert value(samples, "worker_compute_seconds_total", model="meta") == 0
    assert value(samples, "worker_compute_seconds_total", model="m") > 0
    assert {count for _, count in samples["worker_queue_depth"]} == {0}
    assert {count for _, count in samples["worker_inflight_requests"]} == {0}


@pytest.mark.parametrize("seed", range(5))
async def test_after_any_mixture_the_totals_add_up_and_nothing_is_left(api, scrape, stage, seed):
    chance = random.Random(seed)
    stage.load()
    asked: Counter[str] = Counter()

    async def ask(kind):
        asked[kind] += 1
        if kind == "gone":
            with move_on_after(chance.random() / 500):
                await api.infer([1])
        elif kind == "late":
            await api.infer([1], parameters={"timeout": chance.randrange(1, 3000)})
        elif kind == "broken":
            stage.backend.fail_next(ExecutionFailed("boom"))
            await api.infer([1])
        else:
            await api.infer({"empty": [], "one": [1], "cut": list(range(chance.randrange(5, 20)))}[kind])

    for _ in range(8):
        async with create_task_group() as group:
            for _ in range(chance.randrange(1, 25)):
                group.start_soon(ask, chance.choice(["one", "one", "cut", "empty", "gone", "late", "broken"]))
    samples = await scrape()
    [model] = (await api.get("/status")).json()["models"]
    accepted = model["serving"]["accepted"]
    assert sum(count for _, count in samples["worker_requests_total"]) == accepted
    assert sum(asked.values()) - asked["gone"] <= accepted <= sum(asked.values())  # some went before they were read
    dropped = value(samples, "worker_requests_total", status="dropped")
    assert sum(count for _, count in samples["worker_drops_total"]) == dropped
    assert value(samples, "worker_request_latency_seconds_count") == accepted
    answered = value(samples, "worker_requests_total", status="ok")
    assert value(samples, "worker_stage_seconds_count", stage="compute") == answered > 0
    for gauge in ("worker_queue_depth", "worker_inflight_requests"):
        assert value(samples, gauge) == 0
    busy = value(samples, "worker_device_busy_seconds_total")
    assert value(samples, "worker_compute_seconds_total") <= busy


async def test_requests_that_no_model_took_are_counted_by_code_and_in_no_models_account(make_api, stage):
    """By the gate of the ASGI door, by the handler before the queue; not those that a queue refused."""
    stage.load()
    api = make_api(api_token="the-api-token", max_body_bytes=50)
    async with api.client() as client:
        for _ in range(2):
            assert (await client.post("/v2/models/m/infer", content=b"{}")).status_code == 401
    assert (await api.infer([1])).status_code == 413
    assert (await api.post("/v2/models/other/infer", content=b"{}")).status_code == 404
    assert (await api.post("/v2/models/m/infer", content=b"{}")).status_code == 400
    await api.get("/v2/models/other")
    samples = text_samples((await api.get("/metrics")).text)
    refused = {labels["code"]: count for labels, count in samples["worker_refusals_total"]}
    assert refused == {"unauthorized": 2, "payload_too_large": 1, "model_not_found": 1}
    assert value(samples, "worker_requests_total", model="m", status="failed") == 1


async def test_what_a_queue_refuses_is_in_the_account_of_its_model_alone(make_api, stage):
    stage.load()
    api = make_api()
    stage.dispatcher.stats()
    hold = stage.hold_run()
    first = stage.ask()
    hold.wait_entered()
    late = await api.post("/v2/models/m/infer", content=b"{}", headers={"x-request-timeout-ms": "1"})
    hold.open()
    first.result(30)
    assert late.status_code in (400, 504)
    samples = text_samples((await api.get("/metrics")).text)
    assert "worker_refusals_total" not in samples
