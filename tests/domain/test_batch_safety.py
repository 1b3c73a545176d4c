"""The verdict: which deviation counts, against which limit, and what is said of it."""

from math import inf

import pytest

from app.domain.batch_safety import BatchCheck, BatchProbe, BatchSafety, Beside, Deviation, Verdict, judge
from app.domain.model import ModelSpec
from tests.builders import spec, tensor

PLACE = "variant 'default', 4 rows"


def deviation(difference, beside=Beside.NEIGHBOURS, scale=1.0, fault="", output="y"):
    return Deviation(output, beside, PLACE, difference, scale, fault)


def verdict(*deviations, datatype="FP32", padding="zeros", failure="", quantised=False, **check):
    outputs = [tensor("y", datatype), tensor("z", datatype)]
    return judge(outputs, BatchProbe(deviations, failure, quantised), BatchCheck(**check), padding)


def test_nothing_that_moved_is_safe_and_says_nothing():
    assert verdict() == BatchSafety(Verdict.SAFE, "", 0.0)


@pytest.mark.parametrize(
    ("datatype", "rounding"),
    [("FP32", 1e-5), ("FP64", 1e-5), ("FP16", 4 / 1024), ("BF16", 4 / 128), ("INT64", 0.0), ("BYTES", 0.0)],
)
@pytest.mark.parametrize("beside", [Beside.NEIGHBOURS, Beside.COPIES, Beside.ZEROS])
def test_rounding_depends_on_the_datatype_and_the_range(datatype, rounding, beside):
    within = deviation(8 * rounding, beside, scale=8.0)
    assert verdict(within, datatype=datatype) == BatchSafety(Verdict.SAFE, "", rounding)
    beyond = deviation(8 * rounding + 1e-6, beside, scale=8.0)
    assert verdict(beyond, datatype=datatype).verdict is Verdict.UNSAFE


def test_up_to_five_percent_of_a_quantised_model_is_approximate():
    found = verdict(deviation(0.01), deviation(0.05, output="z"), quantised=True)
    assert found == BatchSafety(
        Verdict.APPROXIMATE,
        f"output 'z' of a row changes by 0.05 of its range with other rows beside it ({PLACE}); batched all the same",
        0.05,
    )
    assert verdict(deviation(0.0501), quantised=True).verdict is Verdict.UNSAFE


def test_any_dependence_in_another_model_is_unsafe():
    found = verdict(deviation(0.01))
    assert (found.verdict, found.figure) == (Verdict.UNSAFE, 0.01)
    assert found.reason.endswith("; requests run alone, at their own number of rows")


def test_what_no_number_tells_is_unsafe_in_its_own_words():
    found = verdict(deviation(0.01), deviation(inf, fault="output 'y' is odd"), quantised=True)
    assert found == BatchSafety(
        Verdict.UNSAFE, f"output 'y' is odd ({PLACE}); requests run alone, at their own number of rows"
    )


def test_an_output_that_was_zero_and_moves_is_beyond_every_limit():
    assert verdict(deviation(1e-30, scale=0.0), quantised=True).verdict is Verdict.UNSAFE


def test_zeros_count_only_where_they_are_the_padding():
    zeros = deviation(1.0, Beside.ZEROS)
    assert verdict(zeros, padding="repeat") == BatchSafety(Verdict.SAFE, "", 0.0)
    assert "batching.padding: repeat would mend it" in verdict(zeros).reason
    assert "padding: repeat" not in verdict(zeros, deviation(0.5)).reason


def test_a_manifest_may_widen_and_narrow_what_counts_as_none():
    assert verdict(deviation(0.2), rtol=0.2).verdict is Verdict.SAFE
    assert verdict(deviation(0.2, scale=2.0), atol=0.2).verdict is Verdict.SAFE
    assert verdict(deviation(0.5, scale=2.0), rtol=0.2, atol=0.1).verdict is Verdict.SAFE
    assert verdict(deviation(0.51, scale=2.0), rtol=0.2, atol=0.1).verdict is Verdict.UNSAFE
    assert verdict(deviation(9e-6), rtol=0.0).verdict is Verdict.UNSAFE


@pytest.mark.parametrize("beside", [Beside.PLACE, Beside.SIZE])
def test_other_kernels_are_only_warned_of(beside):
    assert verdict(deviation(0.001, beside)) == BatchSafety(Verdict.SAFE, "", 0.0)
    found = verdict(deviation(0.04, beside))
    assert found == BatchSafety(
        Verdict.SAFE, f"output 'y' of a row changes by 0.04 of its range with {beside} ({PLACE})", 0.0
    )


def test_a_place_that_changes_everything_is_unsafe_and_a_size_is_not():
    assert verdict(deviation(0.06, Beside.PLACE)).verdict is Verdict.UNSAFE
    assert verdict(deviation(0.06, Beside.SIZE)).verdict is Verdict.SAFE


def test_what_could_not_be_tried_is_unverified_unless_something_moved():
    found = verdict(failure="no such index")
    assert (found.verdict, found.figure) == (Verdict.UNVERIFIED, None)
    assert "no such index" in found.reason
    assert verdict(deviation(1.0), failure="no such index").verdict is Verdict.UNSAFE


def test_warn_says_what_enforce_would_have_done():
    found = verdict(deviation(1.0), verify="warn")
    assert found.verdict is Verdict.UNSAFE
    assert found.reason.endswith("; batched all the same (batching.verify is warn)")


def test_off_judges_nothing():
    found = verdict(deviation(1.0), failure="x", verify="off")
    assert (found.verdict, found.figure) == (Verdict.OFF, None)


# what a model says of its batches


def test_a_model_says_what_its_verdict_says():
    assert spec(batch_safety=verdict(deviation(0.01))).batching_reason.startswith("output 'y' of a row changes by 0.01")
    assert spec(batch_safety=verdict()).batching_reason == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"batching": False}, "the manifest turns batching off (batching.enabled)"),
        ({"outputs": (tensor("y"), tensor("sum", batch_axis=None))}, "output 'sum' has no batch axis"),
        ({"inputs": (tensor("x", batch_axis=None),)}, "no input has a batch axis"),
    ],
)
def test_a_model_without_a_verdict_says_why_it_does_not_merge(changes, reason):
    described: ModelSpec = spec(**changes)
    assert described.batching_reason == reason
    assert described.coalescible is (reason == "")
