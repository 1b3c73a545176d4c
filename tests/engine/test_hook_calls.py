"""What hooks are given."""

import numpy as np
import pytest

from app.engine.hook_calls import aligned, preprocess
from app.repository.hooks import HookContext
from tests.builders import spec

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def view(pad, *, writable):
    """The tensor as it lies in a body: `pad` bytes behind an aligned address."""
    body = bytearray(pad) + X.tobytes()
    return np.ndarray(X.shape, X.dtype, body if writable else bytes(body), pad)


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("pad", range(5))
def test_a_hook_may_work_in_place_and_call_native_code(pad, writable):
    model, given = spec(), view(pad, writable=writable)

    def hook(tensors, _):
        (array,) = tensors.values()
        assert array.flags.aligned
        array += 1
        return tensors

    ready = preprocess(hook, {model.inputs[0].name: given}, HookContext("m", {}, 0.0), model)
    assert np.array_equal(ready[model.inputs[0].name], X + 1)


@pytest.mark.parametrize("pad", range(5))
def test_only_what_is_not_aligned_is_copied(pad):
    given = view(pad, writable=True)
    array = aligned({"x": given})["x"]
    assert array.flags.aligned
    assert np.array_equal(array, X)
    assert np.shares_memory(array, given) == given.flags.aligned
