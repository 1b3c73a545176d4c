"""Statistics: counts that clients compare with each other, and sums that only grow."""

import asyncio
import time
from itertools import pairwise

import pytest

pytestmark = pytest.mark.anyio

STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


async def stats(api, path="/v2/models/m/stats"):
    [told] = (await api.get(path)).json()["model_stats"]
    return told


async def test_a_model_that_was_never_asked_has_zeros(api, stage):
    stage.load(manifest='version: "7"\n')
    told = await stats(api, "/v2/models/m/versions/7/stats")
    assert (told["name"], told["version"]) == ("m", "7")
    assert (told["last_inference"], told["inference_count"], told["execution_count"]) == (0, 0, 0)
    assert set(told["inference_stats"]) == {"success", "fail", *STAGES, "cache_hit", "cache_miss"}
    assert all(duration == {"count": 0, "ns": 0} for duration in told["inference_stats"].values())
    assert told["batch_stats"] == []


async def test_one_request_of_eight_rows_is_one_success_one_execution_and_eight_inferences(api, stage):
    stage.load(sizes=(1, 8))
    before = time.time_ns() // 1_000_000
    assert (await api.infer(list(range(8)))).status_code == 200
    told = await stats(api)
    assert (told["inference_count"], told["execution_count"]) == (8, 1)
    assert told["inference_stats"]["success"]["count"] == 1
    assert before - 1 <= told["last_inference"] <= time.time_ns() // 1_000_000 + 1
    [batch] = told["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (8, 1)
    assert batch["compute_infer"]["ns"] == told["inference_stats"]["compute_infer"]["ns"] > 0


async def test_requests_that_share_an_execution_are_two_successes_of_one_execution(api, stage):
    stage.load(sizes=(16,))
    hold = stage.hold_run()
    first = asyncio.ensure_future(api.infer([0]))
    await asyncio.to_thread(hold.wait_entered)
    others = [asyncio.ensure_future(api.infer(rows)) for rows in ([1], list(range(8)))]
    while stage.stats().queue_depth < 2:
        await asyncio.sleep(0)
    hold.open()
    assert {answer.status_code for answer in await asyncio.gather(first, *others)} == {200}
    told = await stats(api)
    assert told["inference_stats"]["success"]["count"] == 3
    assert (told["inference_count"], told["execution_count"]) == (10, 2)
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in told["batch_stats"]] == [(1, 1), (9, 1)]


async def test_the_stages_of_answered_requests_have_equal_counts_and_add_up_to_no_more_than_their_time(api, stage):
    stage.load()
    seen = []
    for rows in ([1], [1, 2], list(range(20))):
        assert (await api.infer(rows)).status_code == 200
        assert (await api.post("/v2/models/m/infer", content=b"{")).status_code == 400
        seen.append((await stats(api))["inference_stats"])
    assert {seen[-1][stage]["count"] for stage in STAGES} == {3} == {seen[-1]["success"]["count"]}
    assert 0 < sum(seen[-1][stage]["ns"] for stage in STAGES) <= seen[-1]["success"]["ns"]
    assert seen[-1]["fail"]["count"] == 3
    assert seen[-1]["fail"]["ns"] > 0
    for earlier, later in pairwise(seen):
        assert all(earlier[name]["ns"] <= later[name]["ns"] for name in earlier)


async def test_all_models_that_serve_are_told_and_no_others(api, stage):
    stage.load("a")
    stage.load("b")
    told = (await api.get("/v2/models/stats")).json()["model_stats"]
    assert [each["name"] for each in told] == ["a", "b"]
    assert told[0]["memory_usage"] == [{"type": "GPU", "id": 7, "byte_size": told[0]["memory_usage"][0]["byte_size"]}]
    for path in ("/v2/models/absent/stats", "/v2/models/a/versions/9/stats"):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")


async def test_a_meta_model_counts_its_requests_and_its_sub_models_their_executions(api, stage):
    stage.load("part", manifest="expose: true\n")
    (stage.root / "whole").mkdir()
    (stage.root / "whole" / "manifest.yaml").write_text(
        'format_version: "1"\nkind: meta\ncalls: [part]\n'
        "client_inputs: [{name: x, dtype: FP32, shape: nc, dims: {c: 3}}]\n"
        "client_outputs: [{name: y, dtype: FP32, shape: nc, dims: {c: 3}}]\n"
    )
    (stage.root / "whole" / "hooks.py").write_text("def run(inputs, call):\n    return call('part', inputs)\n")
    stage.control.load_model("whole", stage.root / "whole").result(30)
    assert (await api.infer([1, 2], name="whole")).status_code == 200
    told = {each["name"]: each for each in (await api.get("/v2/models/stats")).json()["model_stats"]}
    assert (told["whole"]["inference_count"], told["whole"]["execution_count"]) == (1, 1)
    assert told["whole"]["inference_stats"]["success"]["count"] == 1
    assert (told["part"]["inference_count"], told["part"]["execution_count"]) == (2, 1)
    assert told["part"]["inference_stats"]["success"]["count"] == 0
