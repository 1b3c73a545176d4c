"""What all workers say, put together."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.scaleout.fleet import Answer
from app.scaleout.merging import merged_answers, merged_metrics, merged_statistics

PLACES = {"w0": 'gpu="0",worker="a"', "w1": 'gpu="1",worker="b"'}

ONE = """\
# HELP worker_rows Rows
# TYPE worker_rows counter
worker_rows{model="m",gpu="0",worker="a"} 1
# HELP http_requests_total Total
# TYPE http_requests_total counter
http_requests_total{handler="/v2"} 3.0
# HELP up Plain
# TYPE up gauge
up 1
# TYPE empty gauge
empty{} 2
"""

OTHER = ONE.replace('gpu="0",worker="a"', 'gpu="1",worker="b"') + "# HELP more More\n# TYPE more gauge\nmore 7\n# EOF\n"


def test_every_family_has_its_head_once_and_the_samples_of_all():
    text = "".join(merged_metrics({"w0": ONE, "w1": OTHER}, PLACES))
    assert text.count("# TYPE worker_rows counter") == text.count("# HELP up Plain") == 1
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert [(s.labels["worker"], s.labels["gpu"], s.value) for s in families["worker_rows"]] == [
        ("a", "0", 1.0), ("b", "1", 1.0),
    ]  # fmt: skip
    assert [s.labels for s in families["http_requests"]] == [
        {"gpu": "0", "worker": "a", "handler": "/v2"}, {"gpu": "1", "worker": "b", "handler": "/v2"},
    ]  # fmt: skip
    assert [s.labels for s in families["up"]] == [{"gpu": "0", "worker": "a"}, {"gpu": "1", "worker": "b"}]
    assert [(s.labels["worker"], s.value) for s in families["more"]] == [("b", 7.0)]
    assert 'empty{gpu="0",worker="a"} 2' in text


def test_statistics_are_added_up_by_model_and_batch_size():
    def told(count, last, sizes):
        return {
            "model_stats": [
                {
                    "name": "m", "version": "1", "last_inference": last, "inference_count": count,
                    "inference_stats": {"success": {"count": count, "ns": 10 * count}},
                    "batch_stats": [{"batch_size": size, "compute_infer": {"count": 1, "ns": 5}} for size in sizes],
                    "memory_usage": [{"type": "GPU", "id": last, "byte_size": 9}],
                }
            ]
        }  # fmt: skip

    [model] = merged_statistics([told(2, 100, [1, 4]), told(3, 50, [2, 4])])["model_stats"]
    assert (model["name"], model["version"], model["last_inference"], model["inference_count"]) == ("m", "1", 100, 5)
    assert model["inference_stats"]["success"] == {"count": 5, "ns": 50}
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in model["batch_stats"]] == [
        (1, 1), (2, 1), (4, 2),
    ]  # fmt: skip
    assert [each["id"] for each in model["memory_usage"]] == [100, 50]


def test_models_that_one_worker_alone_has_stay():
    one, other = ({"model_stats": [{"name": name, "version": "1", "inference_count": 1}]} for name in "ab")
    assert [model["name"] for model in merged_statistics([one, other])["model_stats"]] == ["a", "b"]


def test_what_all_did_is_told_by_worker_or_not_at_all():
    assert merged_answers({"w0": Answer(200), "w1": Answer(200)}) == (200, b"")
    status, body = merged_answers({"w0": Answer(200, b'{"a": 1}'), "w1": Answer(200, b'{"a": 2}')})
    assert (status, json.loads(body)) == (200, {"workers": {"w0": {"a": 1}, "w1": {"a": 2}}})


@pytest.mark.parametrize(
    ("failure", "status", "message", "code"),
    [
        (Answer(404, b'{"error": "unknown model", "code": "model_not_found"}'), 404, "w1: unknown model (done by w0)",
         "model_not_found"),
        (Answer(0, text="no answer in time"), 503, "w1: no answer in time (done by w0)", "worker_unavailable"),
        (Answer(500, b"plain"), 500, "w1: status 500 (done by w0)", "worker_unavailable"),
    ],
)  # fmt: skip
def test_of_what_one_did_not_do_it_is_told_who_and_who_did(failure, status, message, code):
    got, body = merged_answers({"w0": Answer(200, b"{}"), "w1": failure})
    told = json.loads(body)
    assert (got, told["error"], told["code"]) == (status, message, code)
