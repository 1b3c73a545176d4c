"""Every time limit of a request in its own unit: none is ever taken for another."""

from math import inf

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.api.access import Access
from app.api.exchange import RequestHead
from app.api.inference import Inference
from app.api.limits import InFlight

pytestmark = pytest.mark.anyio

#: Tells the deadline that the request ended up with.
TELLING = """
def preprocess(inputs, context):
    raise ValueError(repr(context.deadline))
"""

TENSOR = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 1, 1]}

#: Requests are received so many seconds from now, so that no limit passes while they are looked at.
AHEAD = 1000.0

LIMIT = st.sampled_from([None, None, 0, 1, 2, 7, 999, 1_000, 1_001, 60_000, 2_500_000])


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(header_ms=LIMIT, envoy_ms=LIMIT, timeout_us=LIMIT, default_ms=LIMIT)
async def test_the_tightest_limit_counts_each_in_its_unit(stage, header_ms, envoy_ms, timeout_us, default_ms):
    if "m" not in stage.registry.entries:
        stage.load(hooks=TELLING)
    changes = {"default_timeout_ms": float(default_ms or 0)}
    await stage.engine.set_policy("m", lambda policy: policy.model_copy(update=changes))
    handler = Inference(stage.engine, Access(None, "the-admin-token"), InFlight(10, 1 << 20, 4096), 4096)
    parameters = {} if timeout_us is None else {"parameters": {"timeout": timeout_us}}
    body = orjson.dumps({"inputs": [TENSOR], **parameters})
    limits = {b"x-request-timeout-ms": header_ms, b"x-envoy-expected-rq-timeout-ms": envoy_ms}
    headers = [(name, b"%d" % value) for name, value in limits.items() if value is not None]
    received_at = stage.clock() + AHEAD
    ticket = handler.admit(RequestHead("m", None, headers, received_at, len(body)))
    reply = await handler.handle(ticket, body)
    told = orjson.loads(b"".join(reply.body))["error"]
    seconds = [(header_ms, 1e-3), (envoy_ms, 1e-3), (default_ms, 1e-3), (timeout_us, 1e-6)]
    tightest = min((value * unit for value, unit in seconds if value), default=inf)
    assert told.startswith("preprocess of model 'm': ")
    assert float(told.rsplit(" ", 1)[1]) == pytest.approx(received_at + tightest, rel=0, abs=1e-7)
