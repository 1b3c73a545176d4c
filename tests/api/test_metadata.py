"""What there is to serve, and whether it serves."""

import orjson
import pytest

from app.api.metadata import EXTENSIONS
from app.domain.batch_safety import BatchProbe, Beside, Deviation
from app.domain.errors import ExecutionFailed, ServingError
from tests.builders import rows_of, write_identity_bundle, write_meta_bundle

pytestmark = pytest.mark.anyio


@pytest.fixture
def broken(stage):
    """A model whose load failed."""
    stage.backend.on_compile = _fail
    stage.control.load_model("broken", write_identity_bundle(stage.root, "broken")).exception(30)
    stage.backend.on_compile = None


def _fail(*_):
    raise ExecutionFailed("boom")


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
async def test_the_server_says_what_it_is_and_only_what_it_can(api, path):
    answer = (await api.get(path)).json()
    assert (answer["name"], answer["version"]) == ("inference-server", "1.2.3")
    assert set(answer["extensions"]) == set(PROOFS)


async def classifies(api):
    outputs = [{"name": "y", "parameters": {"classification": 1}}]
    [output] = (await api.infer([5], outputs=outputs)).json()["outputs"]
    return output["datatype"] == "BYTES" and output["data"][0].startswith("5")


async def has_an_index(api):
    return [each["name"] for each in (await api.post("/v2/repository/index")).json()] == ["m"]


async def takes_and_gives_bytes(api):
    data = rows_of(5, 1).tobytes()
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = await api.post("/v2/models/m/infer", content=head + data, headers=headers)
    return answer.content[int(answer.headers["inference-header-content-length"]) :] == data


async def obeys_parameters(api):
    return (await api.infer([5], parameters={"explain": True})).json()["parameters"]["batch_rows"] == 1


async def tells_statistics(api):
    return (await api.get("/v2/models/stats")).json()["model_stats"][0]["name"] == "m"


async def tells_log_settings(api):
    return (await api.get("/v2/logging")).json()["log_error"] is True


async def tells_configurations(api):
    return (await api.get("/v2/models/m/config")).json()["max_batch_size"] == 4


PROOFS = {
    "statistics": tells_statistics,
    "logging": tells_log_settings,
    "model_configuration": tells_configurations,
    "classification": classifies,
    "model_repository": has_an_index,
    "binary_tensor_data": takes_and_gives_bytes,
    "parameters": obeys_parameters,
}


@pytest.mark.parametrize("extension", EXTENSIONS)
async def test_what_is_advertised_works(api, stage, extension):
    stage.load()
    assert await PROOFS[extension](api)


async def test_it_lives_while_the_dispatcher_does(api, stage):
    answer = await api.get("/v2/health/live")
    assert (answer.status_code, answer.json()) == (200, {"live": True})


async def test_a_dead_dispatcher_is_not_live_and_not_ready(api, stage):
    class Unexpected(BaseException):
        pass

    def die(*_):
        raise Unexpected

    stage.load()
    stage.readiness.expect([])
    assert (await api.get("/v2/health/ready")).json() == {"ready": True}
    stage.backend.on_run = die
    assert isinstance(stage.ask().exception(30), ServingError)
    for path, body in (("/v2/health/live", {"live": False}), ("/v2/health/ready", {"ready": False})):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()) == (503, body)


async def test_it_is_ready_once_the_models_of_the_start_are_settled(api, stage):
    assert (await api.get("/v2/health/ready")).status_code == 503
    stage.readiness.expect([])
    answer = await api.get("/v2/health/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True})


async def test_it_is_not_ready_while_a_required_meta_model_lacks_what_it_calls(api, stage, monkeypatch):
    monkeypatch.setattr(stage.readiness, "_required", frozenset({"meta"}))
    stage.control.load_model("meta", write_meta_bundle(stage.root, calls=["m"])).result(30)
    stage.readiness.expect(["meta"])
    for url in ("/v2/health/ready", "/v2/models/meta/ready"):
        assert (await api.get(url)).status_code == 503
    stage.load("m")
    for url in ("/v2/health/ready", "/v2/models/meta/ready"):
        assert (await api.get(url)).status_code == 200


async def test_models_are_listed_by_name(api, stage, broken):
    stage.load("b")
    stage.load("a")
    assert (await api.get("/v2/models")).json() == {"models": ["a", "b", "broken"]}


@pytest.mark.parametrize("path", ["/v2/models/m", "/v2/models/m/versions/7"])
async def test_a_model_is_described_as_clients_see_it(api, stage, path):
    stage.load(manifest='version: "7"\ndescription: copies\n')
    answer = (await api.get(path)).json()
    properties = answer.pop("properties")
    assert int(properties.pop("policy_digest"), 16)
    assert properties == {
        "digest": stage.registry.resolve("m").bundle.digest,
        "description": "copies",
        "batchable": "true",
        "batch_safety": "safe",
        "batching_reason": "",
    }
    assert answer == {
        "name": "m",
        "versions": ["7"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }


async def test_metadata_say_why_a_model_is_not_batched(api, stage):
    moved = Deviation("y", Beside.COPIES, "variant 'default', 2 rows", 0.5, 1.0)
    stage.backend.probes["m"] = BatchProbe((moved,))
    stage.load()
    properties = (await api.get("/v2/models/m")).json()["properties"]
    assert (properties["batchable"], properties["batch_safety"]) == ("false", "unsafe")
    assert "changes by 0.5 of its range with copies of itself beside it" in properties["batching_reason"]


async def test_a_renamed_model_is_described_under_its_new_name(api, stage):
    stage.load("old")
    stage.control.rename_models([("old", "new")]).result(30)
    assert (await api.get("/v2/models/new")).json()["name"] == "new"
    assert (await api.get("/v2/models/old")).status_code == 404


async def test_whether_a_model_serves(api, stage, broken):
    stage.load()
    assert (await api.get("/v2/models/m/ready")).json() == {"name": "m", "ready": True}
    assert (await api.get("/v2/models/m/versions/1/ready")).status_code == 200
    answer = await api.get("/v2/models/broken/ready")
    assert (answer.status_code, answer.json()) == (503, {"name": "broken", "ready": False})


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v2/models/absent", 404, "model_not_found"),
        ("/v2/models/absent/ready", 404, "model_not_found"),
        ("/v2/models/m/versions/2", 404, "model_not_found"),
        ("/v2/models/m/versions/2/ready", 404, "model_not_found"),
        ("/v2/models/broken", 503, "model_unavailable"),
        ("/v2/models/m/", 404, "not_found"),
        ("/v2/models/m/config/x", 404, "not_found"),
        ("/v2/trace/setting", 404, "not_found"),
        ("/v2/cudasharedmemory/status", 404, "not_found"),
    ],
)
async def test_what_is_not_there_is_refused(api, stage, broken, path, status, code):
    stage.load()
    answer = await api.get(path)
    assert (answer.status_code, answer.json()["code"], set(answer.json())) == (status, code, {"error", "code"})
