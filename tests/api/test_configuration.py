"""Model configuration, as perf_analyzer reads it."""

import pytest

from app.api.configuration import configuration
from app.domain.config import ModelPolicy
from tests.builders import spec, tensor

pytestmark = pytest.mark.anyio


def test_a_batch_in_front_is_left_out_of_the_dims():
    model = spec(sizes=(1, 4), inputs=(tensor("x", "BYTES", (-1, -1, 3)),), outputs=(tensor("y", "BF16", (-1, 2)),))
    told = configuration(model, ModelPolicy(max_wait_ms=2))
    assert told["name"] == "m"
    assert told["max_batch_size"] == 4
    assert told["input"] == [{"name": "x", "data_type": "TYPE_STRING", "dims": [-1, 3]}]
    assert told["output"] == [{"name": "y", "data_type": "TYPE_BF16", "dims": [2]}]
    assert told["dynamic_batching"] == {"preferred_batch_size": [1, 4], "max_queue_delay_microseconds": 2000}


@pytest.mark.parametrize(("cap", "most"), [(2, 2), (100, 4), (None, 4)])
def test_a_cap_is_the_most_rows_that_run_together(cap, most):
    assert configuration(spec(sizes=(1, 4)), ModelPolicy(max_batch_size=cap))["max_batch_size"] == most


@pytest.mark.parametrize("axis", [None, 1])
def test_where_the_batch_is_elsewhere_the_dims_are_whole(axis):
    told = configuration(spec(inputs=(tensor("x", "FP32", (3, -1), axis), tensor("k"))), ModelPolicy())
    assert told["max_batch_size"] == 0
    assert told["input"][0]["dims"] == [3, -1]


def test_what_is_never_merged_has_no_dynamic_batching_and_may_still_have_rows():
    told = configuration(spec(batching=False), ModelPolicy())
    assert told["max_batch_size"] == 1
    assert "dynamic_batching" not in told


@pytest.mark.parametrize("path", ["/v2/models/m/config", "/v2/models/m/versions/1/config"])
async def test_it_is_asked_for_by_name_and_version(api, stage, path):
    stage.load()
    assert (await api.get(path)).json()["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert (await api.get(path.replace("/m/", "/absent/"))).status_code == 404
    assert (await api.get("/v2/models/m/versions/2/config")).status_code == 404
