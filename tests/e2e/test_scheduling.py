"""What a real server does with queues: who is answered when, who shares an execution with whom, who is refused."""

import http.client
import json
import time
from collections import Counter
from contextlib import closing, contextmanager

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from load_tests.models import write_bundle
from load_tests.treadmill import WIDTH, stopwatch, treadmill
from tests.builders import rows_of, write_identity_bundle
from tests.e2e.conftest import running

QUEUE_DEPTH = 16

#: Turns of an execution that outlasts every test that does not end it.
ENDLESS = 10**12


value = helper.make_tensor_value_info


def table():
    """Looks up rows of four, row i holds i, i, …; any other index fails the execution.

    A batch of eight is dear enough that looking for the culprit, in cheap halves, is never given up for lack of time.
    """
    built = treadmill(growth=2500)
    built.graph.node.insert(0, helper.make_node("Gather", ["table", "index"], ["x"]))
    built.graph.initializer.append(numpy_helper.from_array(rows_of(0, 4, WIDTH), "table"))
    del built.graph.input[:]
    built.graph.input.append(value("index", TensorProto.INT64, ["n"]))
    return built


def scaled():
    """`x` FP32 [n, 1] times `scale` [1], which is one for all rows."""
    inputs = [value("x", TensorProto.FLOAT, ["n", 1]), value("scale", TensorProto.FLOAT, [1])]
    outputs = [value("y", TensorProto.FLOAT, ["n", 1])]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "scale"], ["y"])], "scaled", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_bundles(root):
    """Beside those above: `hold` takes its time, `rows` answers its input.

    `priced` and `filled` are the same model, eight times as dear per row at batch size 8 as at 1.
    """

    def sizes(*compiled):
        return f'format_version: "1"\nbatching: {{compiled_batch_sizes: {list(compiled)}}}\n'

    write_bundle(root, "hold", stopwatch(), sizes(1))
    write_bundle(root, "table", table(), sizes(1, 2, 4, 8))
    write_bundle(root, "scaled", scaled(), sizes(1, 2, 4))
    write_identity_bundle(root, "rows", sizes=(1, 2, 4, 8, 16))
    for name in ("priced", "filled"):
        write_bundle(root, name, treadmill(growth=4000), sizes(1, 8))


@pytest.fixture(scope="module")
def server(cache_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_bundles(root)
    settings = {
        "RUNTIME_INTRA_OP_THREADS": 1,
        "SCHEDULER_MAX_QUEUE_DEPTH": QUEUE_DEPTH,
        "SCHEDULER_SIZING": "fill",
        "SCHEDULER_MODELS": '{"priced": {"sizing": "cost"}}',
    }
    with running(cache_dir, root, **settings) as process:
        yield process


def serving(server, model):
    """What the status says of a model."""
    models = httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["models"]
    return next(each["serving"] for each in models if each["name"] == model)


def wait_for(server, model, **wanted):
    """Ask for the status of a model until it is so."""
    given_up = time.monotonic() + 60
    while any((now := serving(server, model))[name] != what for name, what in wanted.items()):
        assert time.monotonic() < given_up, (now, wanted)


def send(server, model, headers=None, parameters=None, **inputs):
    """Send a request on a connection of its own; `answer` waits for what becomes of it."""
    tensors = []
    for name, given in inputs.items():
        array = np.asarray(given)
        datatype = "INT64" if array.dtype == np.int64 else "FP32"
        tensors.append({"name": name, "shape": array.shape, "datatype": datatype, "data": array.ravel().tolist()})
    connection = http.client.HTTPConnection(server.address, timeout=60)
    body = json.dumps({"inputs": tensors, "parameters": parameters or {}})
    connection.request("POST", f"/v2/models/{model}/infer", body, headers or {})
    return connection


def send_in_order(server, model, requests):
    """Queue requests, each after the one before."""
    connections = []
    for request in requests:
        connections.append(send(server, model, **request))
        wait_for(server, model, queue_depth=len(connections))
    return connections


def answer(connection):
    """The status and the parsed body; the connection closes."""
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, body


def output(connection):
    """The flat data of the one output of an answer."""
    status, body = answer(connection)
    assert status == 200, body
    return body["outputs"][0]["data"]


@contextmanager
def held_device(server):
    """Nothing else runs while the block does: the device has a long execution, which ends when its caller leaves."""
    caller = send(server, "hold", x=[[1.0]], turns=[[ENDLESS]])
    try:
        wait_for(server, "hold", in_flight=1, queue_depth=0)
        yield
    finally:
        caller.close()


def executed(server, model, before):
    """Executions since `before`, by rows."""
    now, then = (Counter(status["batch_rows"]) for status in (serving(server, model), before))
    return {int(rows): times for rows, times in (now - then).items()}


@pytest.mark.parametrize(
    "deadline",
    [{"headers": {"X-Request-Timeout-Ms": "500"}}, {"parameters": {"timeout": 500_000}}],
    ids=lambda d: min(d),
)
def test_a_deadline_that_passes_in_the_queue_is_answered_while_the_device_is_busy(server, deadline):
    before = serving(server, "rows")
    with held_device(server):
        status, body = answer(send(server, "rows", x=[[1.0] * 3], **deadline))
        assert (status, body["code"]) == (504, "deadline_exceeded")
        assert serving(server, "hold")["in_flight"] == 1
        assert serving(server, "rows")["queue_depth"] == 0
    wait_for(server, "hold", in_flight=0)
    assert executed(server, "rows", before) == {}


def test_an_execution_whose_only_caller_leaves_is_ended(server):
    with held_device(server):
        waiting = send(server, "rows", x=[[1.0, 2.0, 3.0]])
        wait_for(server, "rows", queue_depth=1)
    assert output(waiting) == [1.0, 2.0, 3.0]
    wait_for(server, "hold", in_flight=0)


def test_clients_that_leave_the_queue_are_never_executed(server):
    before = serving(server, "rows")
    with held_device(server):
        connections = send_in_order(server, "rows", [{"x": [[float(number)] * 3]} for number in range(8)])
        for connection in connections[:6]:
            connection.close()
        wait_for(server, "rows", queue_depth=2)
    assert [output(each)[0] for each in connections[6:]] == [6.0, 7.0]
    assert executed(server, "rows", before) == {2: 1}
    now = serving(server, "rows")
    assert now["dropped"]["cancelled"] - before["dropped"].get("cancelled", 0) == 6
    assert now["accepted"] - before["accepted"] == 8


@pytest.mark.parametrize("culprit", range(8))
def test_a_poisonous_row_fails_its_own_request_and_no_other(server, culprit):
    before = serving(server, "table")
    indices = [number % 4 if number != culprit else 9 for number in range(8)]
    with held_device(server):
        connections = send_in_order(server, "table", [{"index": [index]} for index in indices])
    answers = [answer(connection) for connection in connections]
    assert [status for status, _ in answers] == [500 if index == 9 else 200 for index in indices]
    assert answers[culprit][1]["code"] == "execution_failed"
    assert [body["outputs"][0]["data"] for _, body in answers if "outputs" in body] == [
        [float(index)] * WIDTH for index in indices if index != 9
    ]
    assert executed(server, "table", before) == {4: 1, 2: 1, 1: 1}, "the eight did not run together at first"


def test_a_split_request_is_answered_in_order_and_its_last_piece_shares_an_execution(server):
    before = serving(server, "rows")
    first, second = np.arange(33.0 * 3).reshape(33, 3), -np.arange(15.0 * 3).reshape(15, 3)
    with held_device(server):
        split = send(server, "rows", x=first)
        wait_for(server, "rows", queue_depth=3)
        other = send(server, "rows", x=second)
        wait_for(server, "rows", queue_depth=4)
    assert output(split) == first.ravel().tolist()
    assert output(other) == second.ravel().tolist()
    assert executed(server, "rows", before) == {16: 3}


def test_a_split_request_that_does_not_fit_whole_is_refused_whole(server):
    before = serving(server, "rows")
    with held_device(server):
        requests = [{"x": [[float(number)] * 3]} for number in range(QUEUE_DEPTH - 2)]
        connections = send_in_order(server, "rows", requests)
        status, body = answer(send(server, "rows", x=np.zeros((33, 3))))
        assert (status, body["code"]) == (429, "queue_full")
        assert serving(server, "rows")["queue_depth"] == QUEUE_DEPTH - 2
    assert [output(connection)[0] for connection in connections] == [float(n) for n in range(QUEUE_DEPTH - 2)]
    assert executed(server, "rows", before) == {8: 1, 4: 1, 2: 1}


def test_a_full_queue_refuses_with_429_and_other_models_do_not_notice(server):
    with held_device(server):
        requests = [{"x": [[float(number)] * 3]} for number in range(QUEUE_DEPTH)]
        connections = send_in_order(server, "rows", requests)
        with closing(send(server, "rows", x=[[0.0] * 3])) as connection:
            refusal = connection.getresponse()
            assert (refusal.status, json.loads(refusal.read())["code"]) == (429, "queue_full")
            assert int(refusal.headers["Retry-After"]) >= 1
        other = send(server, "scaled", x=[[3.0]], scale=[2.0])
        wait_for(server, "scaled", queue_depth=1)
        assert serving(server, "rows")["queue_depth"] == QUEUE_DEPTH
    assert output(other) == [6.0]
    assert [output(connection)[0] for connection in connections] == [float(n) for n in range(QUEUE_DEPTH)]


@pytest.mark.parametrize(("scales", "shared"), [([2, 2, 3, 3], {2: 2}), ([2, 3, 2, 3], {1: 4}), ([2, 2, 2, 2], {4: 1})])
def test_requests_with_different_values_for_all_rows_never_share_an_execution(server, scales, shared):
    before = serving(server, "scaled")
    requests = [{"x": [[float(row)]], "scale": [float(scale)]} for row, scale in enumerate(scales, 1)]
    with held_device(server):
        connections = send_in_order(server, "scaled", requests)
    assert [output(each) for each in connections] == [[float(row * scale)] for row, scale in enumerate(scales, 1)]
    assert executed(server, "scaled", before) == shared


@pytest.mark.parametrize(("model", "runs"), [("filled", {8: 1}), ("priced", {1: 8})])
def test_sizing_by_cost_serves_in_small_batches_what_is_dearer_in_large_ones(server, model, runs):
    before = serving(server, model)
    with held_device(server):
        connections = send_in_order(server, model, [{"x": [[float(row)] * WIDTH]} for row in range(8)])
    assert [output(connection) for connection in connections] == [[float(row)] * WIDTH for row in range(8)]
    assert executed(server, model, before) == runs
