"""Which models may stand in for which: checked when either comes, and when a policy changes."""

import pytest

from app.domain.config import ModelPolicy
from app.domain.errors import BundleError, InvalidRequest
from app.runtime.fallbacks import can_stand_in
from tests.builders import spec, tensor


def falls_back(**names):
    return {name: ModelPolicy(fallback=other) for name, other in names.items()}


HOOKS = "def preprocess(inputs):\n    return {'x': inputs['x'].astype('float32')}\n"

OTHER_TENSORS = {
    "hooks": HOOKS,
    "manifest": "client_inputs: [{name: x, dtype: FP64, shape: nc, dims: {c: 3}}]\n",
}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"client_inputs": (tensor("x", "FP64"),)}, False),
        ({"client_inputs": (tensor("z"),)}, False),
        ({"client_outputs": (tensor("y", shape=(-1, 4)),)}, False),
        ({"client_outputs": (tensor("y"), tensor("z"))}, False),
        ({"inputs": (tensor("inner", "INT64"),), "sizes": (8,)}, True),
    ],
)
def test_only_what_clients_see_must_be_the_same(changes, same):
    seen = {"client_inputs": (tensor("x"),), "client_outputs": (tensor("y"),)}
    assert can_stand_in(spec("m", **seen), spec("other", **{**seen, **changes})) is same


def test_the_order_of_tensors_does_not_matter():
    one = spec("m", client_inputs=(tensor("a"), tensor("b")))
    assert can_stand_in(one, spec("n", client_inputs=(tensor("b"), tensor("a"))))


def test_tensors_that_differ_are_a_load_error_of_the_model_that_falls_back(stage):
    stage.policies.update(falls_back(m="cheap"))
    stage.load("cheap", **OTHER_TENSORS)
    with pytest.raises(BundleError, match=r"model 'm' falls back to 'cheap', whose client-facing tensors differ"):
        stage.load("m")
    assert stage.states()["cheap"] == ("READY", "")
    assert stage.states()["m"][0] == "UNAVAILABLE"


def test_a_fallback_that_comes_later_and_does_not_do_is_no_fault_of_its_own(stage, caplog):
    stage.policies.update(falls_back(m="cheap"))
    stage.load("m")
    stage.load("cheap", **OTHER_TENSORS)
    assert {state for state, _ in stage.states().values()} == {"READY"}
    assert "falls back to 'cheap', whose client-facing tensors differ" in caplog.text
    assert "that fallback is not used" in caplog.text


@pytest.mark.parametrize(
    ("order", "refused"), [(("a", "b", "c"), False), (("c", "b", "a"), True), (("b", "a", "c"), True)]
)
def test_a_chain_is_a_load_error_of_the_model_that_would_begin_it(stage, order, refused, caplog):
    stage.policies.update(falls_back(a="b", b="c"))
    failures = []
    for name in order:
        try:
            stage.load(name)
        except BundleError as error:
            failures.append(error.message)
    told = "model 'a' falls back to 'b', which falls back to 'c': one step only, take one out"
    assert failures == ([told] if refused else [])
    assert told in caplog.text


def test_a_model_is_not_its_own_fallback(stage):
    stage.policies.update(falls_back(m="m"))
    with pytest.raises(BundleError, match="is its own fallback"):
        stage.load()


def test_a_fallback_set_on_a_running_server_is_checked_alike(stage):
    for name, bundle in {"m": {}, "cheap": {}, "other": OTHER_TENSORS}.items():
        stage.load(name, **bundle)

    def set_fallback(name, other):
        change = stage.tuning.set_policy(name, lambda policy: policy.model_copy(update={"fallback": other}))
        return change.result(30).fallback

    assert set_fallback("m", "cheap") == "cheap"
    for name, other in (("m", "other"), ("m", "m"), ("cheap", "m")):
        with pytest.raises(InvalidRequest):
            set_fallback(name, other)
    assert stage.registry.resolve("m").policy.fallback == "cheap"
    assert set_fallback("m", None) is None
