"""The system shared memory extension, over a staged engine."""

import asyncio
import json
import os

import numpy as np
import pytest
from onnx import TensorProto, helper

from app.api.response import IN_PLACE_BYTES
from app.runtime import shared_memory
from tests.api.conftest import ADMIN
from tests.builders import rows_of

pytestmark = pytest.mark.anyio

PREFIX = "/v2/systemsharedmemory"

ROUTES = [
    ("GET", f"{PREFIX}/status"),
    ("GET", f"{PREFIX}/region/r/status"),
    ("POST", f"{PREFIX}/region/r/register"),
    ("POST", f"{PREFIX}/region/r/unregister"),
    ("POST", f"{PREFIX}/unregister"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where the objects are; that with the key `object` has 128 bytes."""
    directory = tmp_path / "objects"
    directory.mkdir()
    monkeypatch.setattr(shared_memory, "DIRECTORY", str(directory))
    (directory / "object").write_bytes(bytes(128))
    return directory


@pytest.fixture
def offering(make_api, place):
    """An application that offers shared memory."""
    return make_api(shared_memory=True, max_body_bytes=1 << 20, max_bytes=1 << 22)


@pytest.fixture
async def registered(offering, stage):
    """And region `r`, bytes 8 to 128 of the object; the model `m` is there."""
    stage.load()
    await register(offering, offset=8, byte_size=120)
    return offering


async def register(api, name="r", expected=200, **body):
    answer = await api.post(f"{PREFIX}/region/{name}/register", json={"key": "object", **body})
    assert answer.status_code == expected, answer.text
    return answer


def within(region="r", byte_size=24, **more):
    return {"shared_memory_region": region, "shared_memory_byte_size": byte_size, **more}


async def ask(api, rows=2, source=None, target=None, **members):
    """Infer with an input in shared memory, where `source` says, and an output there, where `target` does."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "parameters": source}
    if source is None:
        tensor = {**tensor, "parameters": {}, "data": rows_of(1, rows).ravel().tolist()}
    output = {} if target is None else {"outputs": [{"name": "y", "parameters": target}]}
    return await api.post("/v2/models/m/infer", json={"inputs": [tensor], **output, **members})


async def refused(api, names, status=400, code="invalid_request", **request):
    answer = await ask(api, **request)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert names in answer.json()["error"]


@pytest.mark.parametrize("token", [None, ADMIN])
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_where_it_is_not_offered_nobody_finds_it(api, method, path, token):
    async with api.client(token) as client:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "system_shared_memory" not in (await api.get("/v2")).json()["extensions"]


async def test_where_it_is_not_offered_requests_that_use_it_are_told_so(api, stage):
    stage.load()
    await refused(api, "not offered", source=within())
    await refused(api, "not offered", target=within())


async def test_where_it_is_offered_it_is_advertised_and_that_of_cuda_is_not(offering):
    assert "system_shared_memory" in (await offering.get("/v2")).json()["extensions"]
    assert "cuda_shared_memory" not in (await offering.get("/v2")).json()["extensions"]
    for method, path in ROUTES:
        async with offering.client(ADMIN) as client:
            assert (await client.request(method, path.replace("system", "cuda"))).status_code == 404


async def test_only_the_admin_changes_what_is_registered(make_api, place):
    api = make_api(api_token="the-api-token", shared_memory=True)
    for method, path in ROUTES:
        for headers, status in ((None, 401), ({"Authorization": "Bearer the-api-token"}, 403)):
            async with api.client(headers) as client:
                answer = await client.request(method, path)
                assert (answer.status_code == status) is (method == "POST" or status == 401), path


async def test_regions_are_registered_listed_and_forgotten(offering):
    await register(offering, "a", offset=8, byte_size=16)
    await register(offering, "b", key="/object", byte_size=128)
    a = {"name": "a", "key": "object", "offset": 8, "byte_size": 16}
    b = {"name": "b", "key": "/object", "offset": 0, "byte_size": 128}
    assert (await offering.get(f"{PREFIX}/status")).json() == [a, b]
    assert (await offering.get(f"{PREFIX}/region/b/status")).json() == [b]
    assert (await offering.post(f"{PREFIX}/region/a/unregister")).content == b""
    assert (await offering.post(f"{PREFIX}/region/a/unregister")).status_code == 200
    assert (await offering.get(f"{PREFIX}/status")).json() == [b]
    missing = await offering.get(f"{PREFIX}/region/a/status")
    assert (missing.status_code, missing.json()["code"]) == (404, "region_not_found")
    await register(offering, "a", byte_size=1)
    assert (await offering.post(f"{PREFIX}/unregister")).status_code == 200
    assert (await offering.get(f"{PREFIX}/status")).json() == []


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "'byte_size'"),
        ({"byte_size": 0}, "'byte_size'"),
        ({"byte_size": -1}, "'byte_size'"),
        ({"byte_size": True}, "'byte_size'"),
        ({"byte_size": "16"}, "'byte_size'"),
        ({"byte_size": 1.5}, "'byte_size'"),
        ({"byte_size": 2**64}, "'byte_size'"),
        ({"byte_size": 16, "offset": -1}, "'offset'"),
        ({"byte_size": 16, "offset": None}, "'offset'"),
        ({"byte_size": 16, "key": None}, "'key'"),
        ({"byte_size": 16, "key": ["object"]}, "'key'"),
        ({"byte_size": 16, "key": "/../object"}, "'key'"),
        ({"byte_size": 16, "key": "missing"}, "'missing'"),
        ({"byte_size": 129}, "128 bytes"),
        ({"byte_size": 1, "offset": 128}, "128 bytes"),
        ({"byte_size": 2**63 - 1, "offset": 2**63 - 1}, "128 bytes"),
    ],
)
async def test_what_cannot_be_registered_is_refused_by_name(offering, body, names):
    assert names in (await register(offering, expected=400, **body)).json()["error"]
    assert (await offering.get(f"{PREFIX}/status")).json() == []


async def test_a_name_that_is_taken_is_a_conflict(offering):
    await register(offering, byte_size=16)
    assert (await register(offering, expected=409, byte_size=16)).json()["code"] == "region_exists"


async def test_inputs_are_read_and_outputs_written_where_the_request_says(registered, place):
    place.joinpath("object").write_bytes(bytes(16) + rows_of(5, 2).tobytes() + bytes(88))
    answer = await ask(registered, source=within(shared_memory_offset=8), target=within(byte_size=50))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    [output] = answer.json()["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": within()}
    assert place.joinpath("object").read_bytes()[8:32] == rows_of(5, 2).tobytes()
    answer = await ask(registered, target=within(shared_memory_offset=40))
    assert answer.json()["outputs"][0]["parameters"] == within(shared_memory_offset=40)
    assert place.joinpath("object").read_bytes()[48:72] == rows_of(1, 2).tobytes()


async def test_the_other_tensors_of_a_request_travel_as_ever(registered, place):
    place.joinpath("object").write_bytes(bytes(8) + rows_of(5, 2).tobytes() + bytes(96))
    answer = await ask(registered, source=within())
    assert answer.json()["outputs"][0]["data"] == [5] * 3 + [6] * 3
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}],
                "outputs": [{"name": "y", "parameters": within()}],
                "parameters": {"binary_data_output": True}}  # fmt: skip
    head = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    for start in (7, 8):  # the second finds its head remembered
        content = head + rows_of(start, 2).tobytes()
        answer = await registered.post("/v2/models/m/infer", content=content, headers=headers)
        assert answer.json()["outputs"][0]["parameters"] == within()
        assert place.joinpath("object").read_bytes()[8:32] == rows_of(start, 2).tobytes()


async def test_large_tensors_are_copied_beside_the_event_loop_and_exact(offering, place, stage):
    stage.load(sizes=(64,))
    rows = IN_PLACE_BYTES // 12 + 1
    size = rows * 12
    place.joinpath("object").write_bytes(rows_of(1, rows).tobytes() + bytes(size))
    await register(offering, byte_size=2 * size)
    target = within(byte_size=size, shared_memory_offset=size)
    assert (await ask(offering, rows, within(byte_size=size), target)).status_code == 200
    assert np.array_equal(np.fromfile(place / "object", np.float32).reshape(2, rows, 3)[1], rows_of(1, rows))


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("changes", "names", "code"),
    [
        ({"region": "missing"}, "'missing'", "region_not_found"),
        ({"shared_memory_offset": 97}, "120 bytes", "invalid_request"),
        ({"shared_memory_offset": 2**63 - 1}, "120 bytes", "invalid_request"),
        ({"shared_memory_offset": 2**64 - 24}, "120 bytes", "invalid_request"),
    ],
)
async def test_a_range_that_is_not_there_is_refused_before_anything_runs(registered, stage, side, changes, names, code):
    await refused(registered, names, code=code, **{side: within(**changes)})
    assert stage.backend.calls == []


async def test_an_output_that_does_not_fit_is_said_to_and_nothing_is_written(registered, place):
    await refused(registered, "'y' has 24 bytes", target=within(byte_size=23))
    assert place.joinpath("object").read_bytes() == bytes(128)


async def test_a_region_that_was_shortened_is_an_error_of_its_requests(registered, place):
    os.truncate(place / "object", 16)
    await refused(registered, "'object' has 16 bytes", source=within())
    await refused(registered, "'object' has 16 bytes", target=within())
    assert (await ask(registered)).status_code == 200


async def test_text_in_shared_memory_is_checked_as_any_other(offering, place, tmp_path, stage):
    """Elements that end too early, and that are not UTF-8."""
    (tmp_path / "models" / "words").mkdir(parents=True)
    write_words(tmp_path / "models" / "words")
    stage.control.load_model("words", tmp_path / "models" / "words").result(30)
    await register(offering, byte_size=128)
    for content, status, names in [
        (b"\2\0\0\0ok\0\0\0\0", 200, ""),
        (b"\x09\0\0\0ok\0\0\0\0", 400, "'s'"),
        (b"\2\0\0\0\xff\xff\0\0\0\0", 400, "not UTF-8"),
    ]:
        place.joinpath("object").write_bytes(content + bytes(128 - len(content)))
        tensor = {"name": "s", "datatype": "BYTES", "shape": [2], "parameters": within(byte_size=len(content))}
        target = {"name": "t", "parameters": within(byte_size=64, shared_memory_offset=64)}
        answer = await offering.post("/v2/models/words/infer", json={"inputs": [tensor], "outputs": [target]})
        assert answer.status_code == status, answer.text
        if status == 200:
            assert answer.json()["outputs"][0]["parameters"]["shared_memory_byte_size"] == len(content)
            assert place.joinpath("object").read_bytes()[64 : 64 + len(content)] == content
        else:
            assert names in answer.json()["error"]


async def test_what_is_read_counts_as_the_bytes_of_its_request(make_api, place, stage):
    stage.load()
    api = make_api(shared_memory=True, max_body_bytes=400)
    place.joinpath("object").write_bytes(bytes(600))
    await register(api, byte_size=600)
    await refused(api, "the most is 400", 413, "payload_too_large", rows=50, source=within(byte_size=600))
    assert (await ask(api, source=within())).status_code == 200


async def test_a_request_keeps_the_regions_that_it_began_with(registered, place, stage):
    """Forgotten, and made anew under the same name, while it waits for the device."""
    (place / "other").write_bytes(bytes(128))
    hold = stage.hold_run()
    async with registered.client(ADMIN) as client:
        asked = asyncio.ensure_future(ask(registered, target=within()))
        await asyncio.to_thread(hold.wait_entered)
        assert (await client.post(f"{PREFIX}/region/r/unregister")).status_code == 200
        await register(registered, key="other", byte_size=128)
        hold.open()
        assert (await asked).status_code == 200
    assert place.joinpath("object").read_bytes()[8:32] == rows_of(1, 2).tobytes()
    assert place.joinpath("other").read_bytes() == bytes(128)


def write_words(path):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])],
        "words",
        [helper.make_tensor_value_info("s", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("t", TensorProto.STRING, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path / "model.onnx").write_bytes(model.SerializeToString())
    (path / "manifest.yaml").write_text('format_version: "1"\n')
