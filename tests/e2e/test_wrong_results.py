"""Answers that could be wrong without anyone noticing: other rows, other orders, nothing at all, over a real server."""

import json
import struct
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from load_tests.models import mlp, write_bundle
from load_tests.treadmill import stopwatch
from tests.e2e.conftest import running
from tests.e2e.test_scheduling import executed, held_device, serving, wait_for

SIZES = (1, 2, 8, 10)

NUMPY = {"FP32": np.float32, "INT64": np.int64}

value = helper.make_tensor_value_info


def graph_of(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mixed():
    """Hands on the numbers, floats and text of each row, and adds up its floats, of which there may be none."""
    kinds = {"i": (TensorProto.INT64, ["n"]), "x": (TensorProto.FLOAT, ["n", "m"]), "s": (TensorProto.STRING, ["n"])}
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds]
    nodes.append(helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0))
    outputs = [value(f"{name}_out", *kind) for name, kind in kinds.items()]
    outputs.append(value("sum", TensorProto.FLOAT, ["n"]))
    axis = numpy_helper.from_array(np.array([1]), "axis")
    return graph_of(nodes, [value(name, *kind) for name, kind in kinds.items()], outputs, [axis])


def detector():
    """`x` FP32 [n] to the places where it is not zero: `found` INT64 [k, 1], and k is 0 where there are none."""
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Transpose", ["places"], ["found"])]
    return graph_of(nodes, [value("x", TensorProto.FLOAT, ["n"])], [value("found", TensorProto.INT64, ["k", 1])])


#: The same detector, which says itself that it has no batch.
ONE_LINE = """format_version: "1"
executable_inputs: [{name: x, dtype: FP32, shape: c, dims: {c: -1}}]
executable_outputs: [{name: found, dtype: INT64, shape: kr, dims: {k: -1, r: 1}}]
"""

NETWORK = mlp((16, 32, 8))


@pytest.fixture(scope="module")
def server(cache_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    sizes = f'format_version: "1"\nbatching: {{compiled_batch_sizes: {list(SIZES)}}}\n'
    write_bundle(root, "network", NETWORK, sizes)
    write_bundle(root, "apart", NETWORK, sizes)
    write_bundle(root, "mixed", mixed(), sizes)
    write_bundle(root, "detector", detector(), ONE_LINE)
    write_bundle(root, "guessed", detector())
    write_bundle(root, "hold", stopwatch(), sizes)
    models = json.dumps({"apart": {"max_batch_size": 1}})
    with running(cache_dir, root, SCHEDULER_SIZING="fill", SCHEDULER_MODELS=models) as process:
        yield process


def datatype_of(array):
    return {"f": "FP32", "i": "INT64", "O": "BYTES"}[array.dtype.kind]


def encoded(inputs, binary, wanted):
    """A request as body and headers; `wanted` are the outputs, all of them where it is None."""
    tensors, blobs = [], []
    for name, array in inputs.items():
        tensor = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array)}
        if binary:
            blob = packed(array)
            tensor["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            tensor["data"] = [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()]
        tensors.append(tensor)
    document = {"inputs": tensors, "parameters": {"binary_data_output": binary}}
    if wanted is not None:
        document["outputs"] = [{"name": name} for name in wanted]
    head = json.dumps(document).encode()
    return b"".join([head, *blobs]), {"Inference-Header-Content-Length": str(len(head))}


def packed(array):
    if array.dtype.kind != "O":
        return array.tobytes()
    return b"".join([struct.pack("<I", len(each)) + each for each in array.ravel()])


def unpacked(blob):
    elements = []
    while blob:
        [length] = struct.unpack_from("<I", blob)
        elements.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return elements


def post(server, model, inputs, binary=False, wanted=None):
    body, headers = encoded(inputs, binary, wanted)
    return httpx.post(
        f"{server.url}/v2/models/{model}/infer", content=body, headers=headers, timeout=60, trust_env=False
    )


def outputs_of(answer):
    """The outputs of an answer in either form, in its order."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    rest, outputs = answer.content[length:], {}
    for tensor in json.loads(answer.content[:length])["outputs"]:
        text = tensor["datatype"] == "BYTES"
        if "data" in tensor:
            elements = [each.encode() for each in tensor["data"]] if text else tensor["data"]
        else:
            size = tensor["parameters"]["binary_data_size"]
            blob, rest = rest[:size], rest[size:]
            elements = unpacked(blob) if text else np.frombuffer(blob, NUMPY[tensor["datatype"]])
        array = np.empty(len(elements), object if text else NUMPY[tensor["datatype"]])
        array[:] = elements
        outputs[tensor["name"]] = array.reshape(tensor["shape"])
    assert rest == b""
    return outputs


def ask(server, model, inputs, **form):
    return outputs_of(post(server, model, inputs, **form))


def ask_together(server, model, requests):
    """What requests are answered that wait for the device together, and the executions that they took, by rows."""
    before = serving(server, model)
    with ThreadPoolExecutor(len(requests)) as threads:
        with held_device(server):
            answers = []
            for inputs, form in requests:
                answers.append(threads.submit(ask, server, model, inputs, **form))
                wait_for(server, model, queue_depth=len(answers))
        return [answer.result() for answer in answers], executed(server, model, before)


def values(first, rows):
    """Inputs of `network` whose rows are told apart by where they begin."""
    return np.random.default_rng(5).standard_normal((1000, 16)).astype(np.float32)[first : first + rows]


def row_numbers(first, rows, columns=2):
    """Inputs of `mixed`, each row of which tells its number in every tensor; texts of all lengths."""
    numbers = np.arange(first, first + rows)
    text = np.empty(rows, object)
    text[:] = [b"%d" % number * (number % 4) for number in numbers]
    return {"i": numbers, "x": np.repeat(numbers[:, None], columns, axis=1).astype(np.float32), "s": text}


def assert_own_rows(outputs, first, rows, columns=2):
    sent = row_numbers(first, rows, columns)
    for name, array in sent.items():
        assert outputs[f"{name}_out"].shape == array.shape
        assert outputs[f"{name}_out"].tolist() == array.tolist()
    assert outputs["sum"].tolist() == (sent["i"] * columns).tolist()


@pytest.fixture(scope="module")
def alone():
    """What a plain session answers to each of the first rows when it is alone."""
    session = ort.InferenceSession(NETWORK.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["y"], {"x": values(row, 1)})[0] for row in range(40)])


@pytest.mark.parametrize("rows", [*range(1, 11), 11, 18, 23, 30])
def test_every_row_of_every_size_is_answered_as_if_it_were_alone(server, alone, rows):
    got = ask(server, "network", {"x": values(0, rows)}, binary=True)["y"]
    np.testing.assert_allclose(got, alone[:rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sequence", [(10, 2, 10), (8, 1, 8)])
def test_a_batch_after_a_smaller_one_is_whole(server, alone, sequence):
    for first, rows in enumerate(sequence):
        got = ask(server, "network", {"x": values(first, rows)}, binary=True)["y"]
        np.testing.assert_allclose(got, alone[first : first + rows], rtol=1e-5, atol=1e-6)


def test_who_wants_the_same_bits_in_any_company_asks_for_none(server):
    def bits(answers):
        return [answer["y"].tobytes() for answer in answers]

    requests = [({"x": values(row, 1)}, {"binary": True}) for row in range(8)]
    apart, shared = ask_together(server, "apart", requests)
    assert shared == {1: 8}
    assert bits(apart) == bits([ask(server, "apart", inputs, **form) for inputs, form in requests])


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("split", [[3, 5], [5, 3], [1, 1, 2, 4], [1, 6, 2]], ids=str)
def test_requests_of_unequal_rows_that_share_an_execution_get_exactly_their_own(server, binary, split):
    firsts = [sum(split[:place]) + 1 for place in range(len(split))]
    requests = [(row_numbers(first, rows), {"binary": binary}) for first, rows in zip(firsts, split, strict=True)]
    answers, shared = ask_together(server, "mixed", requests)
    for outputs, first, rows in zip(answers, firsts, split, strict=True):
        assert_own_rows(outputs, first, rows)
    # Of the nine rows the last two do not fit into eight.
    assert shared == ({8: 1} if sum(split) == 8 else {7: 1, 2: 1})


def test_one_of_two_that_share_an_execution_may_ask_for_some_outputs_in_another_order_and_form(server):
    wanted = ["sum", "s_out"]
    requests = [(row_numbers(1, 3), {"binary": True, "wanted": wanted}), (row_numbers(4, 5), {"binary": False})]
    for turn in (1, -1):
        answers, shared = ask_together(server, "mixed", requests[::turn])
        assert shared == {8: 1}
        some, every = answers[::turn]
        assert list(some) == wanted
        assert some["sum"].tolist() == [2.0, 4.0, 6.0]
        assert some["s_out"].tolist() == row_numbers(1, 3)["s"].tolist()
        assert_own_rows(every, 4, 5)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("rows", [1, 2, 3, 23])
def test_rows_without_elements_are_rows(server, binary, rows):
    assert_own_rows(ask(server, "mixed", row_numbers(1, rows, columns=0), binary=binary), 1, rows, columns=0)


def test_rows_without_elements_share_executions_among_themselves_only(server):
    columns = [0, 2, 0, 0]
    requests = [(row_numbers(first, 4, columns=each), {"binary": first % 2 == 0}) for first, each in enumerate(columns)]
    answers, shared = ask_together(server, "mixed", requests)
    for first, outputs in enumerate(answers):
        assert_own_rows(outputs, first, 4, columns[first])
    assert shared == {4: 2, 8: 1}


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("model", ["mixed", "network"])
def test_no_rows_are_an_empty_batch(server, binary, model):
    inputs = row_numbers(0, 0, columns=3) if model == "mixed" else {"x": values(0, 0)}
    refusal = post(server, model, inputs, binary=binary)
    assert (refusal.status_code, refusal.json()["code"]) == (400, "empty_batch")
    assert "has 0 rows" in refusal.json()["error"]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("model", ["detector", "guessed"])
def test_a_detector_that_finds_nothing_answers_with_no_rows(server, binary, model):
    assert serving(server, model)["batchable"] is False
    for given in ([0, 0, 0], [0, 7, 7, 0, 7], [0], [1]):
        found = ask(server, model, {"x": np.array(given, np.float32)}, binary=binary)["found"]
        assert found.shape == (np.count_nonzero(given), 1)
        assert found[:, 0].tolist() == np.flatnonzero(given).tolist()


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_an_input_without_a_batch_may_be_empty(server, binary):
    found = ask(server, "detector", {"x": np.zeros(0, np.float32)}, binary=binary)["found"]
    assert found.shape == (0, 1)


@pytest.mark.parametrize(("shape", "names"), [([1], "[1] needs 1 elements in 'data', got 0"), ([0, 0], "[0,0]")])
def test_empty_data_of_a_shape_with_elements_is_refused(server, shape, names):
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
    refusal = httpx.post(
        f"{server.url}/v2/models/detector/infer", json={"inputs": [tensor]}, timeout=60, trust_env=False
    )
    assert refusal.status_code == 400
    assert names in refusal.json()["error"]
