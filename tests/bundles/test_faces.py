"""The `faces` bundle and its three networks on photographs that are known, each network in a plain session."""

import asyncio
import io
from collections import defaultdict

import httpx
import numpy as np
import onnxruntime
import pytest
import skimage.data
import tritonclient.http.aio as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import running

STAGES = ("faces-propose", "faces-refine", "faces-landmarks")
ASTRONAUT = skimage.data.astronaut()
FACE = np.array([181, 62, 268, 173])


def file(pixels, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return stream.getvalue()


def scaled(pixels, factor):
    height, width = (round(side * factor) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


class Call:
    """Runs one network on tensors that its manifest declares; `shapes` are those of its inputs, by network."""

    def __init__(self, bundles):
        self.specs = {name: bundle.spec for name, bundle in bundles.items()}
        self.sessions = {
            name: onnxruntime.InferenceSession(bundle.model_file, providers=["CPUExecutionProvider"])
            for name, bundle in bundles.items()
        }
        self.shapes = defaultdict(list)

    def __call__(self, name, inputs):
        spec, outputs = self.specs[name], [each.name for each in self.specs[name].outputs]
        [tensor] = spec.inputs
        assert inputs.keys() == {tensor.name}
        assert inputs[tensor.name].dtype == tensor.dtype
        assert tensor.accepts(inputs[tensor.name].shape)
        self.shapes[name].append(inputs[tensor.name].shape)
        return dict(zip(outputs, self.sessions[name].run(outputs, inputs), strict=True))


@pytest.fixture(scope="module")
def call(load):
    return Call({name: load(name) for name in STAGES})


@pytest.fixture
def find(load, as_bytes, call):
    """The faces in an image file; every tensor is held against the manifest."""
    bundle = load("faces")

    def found(content):
        call.shapes.clear()
        outputs = bundle.hooks.run({"image": as_bytes([content])}, call)
        assert outputs.keys() == bundle.spec.client_outputs_by_name.keys()
        for name, spec in bundle.spec.client_outputs_by_name.items():
            assert outputs[name].dtype == spec.dtype
            assert spec.accepts(outputs[name].shape)
        assert len({len(output) for output in outputs.values()}) == 1
        return outputs

    return found


def test_networks_are_called_by_faces_and_by_nobody_else(load):
    spec = load("faces").spec
    assert spec.meta_models == STAGES
    assert [load(name).spec.expose for name in STAGES] == [None] * 3


def test_astronaut_has_one_face(find, call):
    faces = find(file(ASTRONAUT))
    np.testing.assert_allclose(faces["boxes"], [FACE], atol=6)
    assert faces["scores"][0] > 0.99
    assert len(call.shapes["faces-propose"]) == len(set(call.shapes["faces-propose"])) == 10
    assert call.shapes["faces-propose"][0] == (1, 308, 308, 3)
    assert 100 < call.shapes["faces-refine"][0][0] < 170  # more than any compiled size: it is split
    assert 1 <= call.shapes["faces-landmarks"][0][0] < 20


def test_landmarks_are_where_eyes_nose_and_mouth_are(find):
    [[left_eye, right_eye, nose, left_mouth, right_mouth]] = find(file(ASTRONAUT))["landmarks"]
    np.testing.assert_allclose(left_eye, [204, 100], atol=5)
    np.testing.assert_allclose(right_eye, [247, 103], atol=5)
    np.testing.assert_allclose(nose, [224, 128], atol=5)
    np.testing.assert_allclose(left_mouth, [202, 138], atol=6)
    np.testing.assert_allclose(right_mouth, [245, 141], atol=6)


def test_mosaic_of_four_astronauts_has_four_faces(find, call):
    faces = find(file(np.tile(ASTRONAUT, (2, 2, 1))))
    places = [FACE + np.array([x, y, x, y]) for y in (0, 512) for x in (0, 512)]
    assert len(faces["boxes"]) == 4
    order = np.lexsort((faces["boxes"][:, 0] > 400, faces["boxes"][:, 1] > 400))
    np.testing.assert_allclose(faces["boxes"][order], places, atol=8)
    assert (np.diff(faces["scores"]) <= 0).all()
    assert 400 < call.shapes["faces-refine"][0][0] < 650


def test_cat_has_none_and_the_third_network_is_never_asked(find, call):
    assert len(find(file(skimage.data.chelsea()))["boxes"]) == 0
    assert call.shapes["faces-refine"]
    assert "faces-landmarks" not in call.shapes


def test_cup_of_coffee_has_none(find):
    assert len(find(file(skimage.data.coffee()))["boxes"]) == 0


def test_blank_image_asks_the_first_network_only(find, call):
    assert find(file(np.full((200, 300, 3), 127, np.uint8)))["landmarks"].shape == (0, 5, 2)
    assert call.shapes.keys() == {"faces-propose"}


def test_image_without_room_for_a_face_asks_nobody(find, call):
    assert find(file(ASTRONAUT[:19, :200]))["boxes"].shape == (0, 4)
    assert not call.shapes


def test_grey_image_is_read(find):
    assert len(find(file(skimage.data.camera()))["boxes"]) == 1


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.8, 1.3, 2.5])
def test_face_is_found_at_every_size_and_in_the_pixels_of_the_image(find, factor):
    [box] = find(file(scaled(ASTRONAUT, factor)))["boxes"]
    np.testing.assert_allclose(box / factor, FACE, atol=8)


def test_face_in_an_image_that_is_not_square_is_where_it_is(find):
    [box] = find(file(ASTRONAUT[20:260, 100:420]))["boxes"]
    np.testing.assert_allclose(box, FACE - [100, 20, 100, 20], atol=8)


def test_mirrored_face_is_mirrored(find):
    left, top, right, bottom = find(file(np.ascontiguousarray(ASTRONAUT[:, ::-1])))["boxes"][0]
    np.testing.assert_allclose([512 - right, top, 512 - left, bottom], FACE, atol=8)


def test_face_at_the_edge_is_found(find):
    [box] = find(file(ASTRONAUT[70:, 185:]))["boxes"]
    np.testing.assert_allclose(box, FACE - [185, 70, 185, 70], atol=15)


def test_large_photograph_is_seen_smaller(find, call):
    """4096 pixels a side, decoded at a quarter of them."""
    large = Image.fromarray(ASTRONAUT).resize((4096, 4096))
    [box] = find(file(np.asarray(large), "JPEG"))["boxes"]
    np.testing.assert_allclose(box / 8, FACE, atol=8)
    assert max(call.shapes["faces-propose"][0]) <= 615


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", file(ASTRONAUT)[:5000], file(ASTRONAUT, "JPEG")[:5000], file(ASTRONAUT, "GIF")],
    ids=["empty", "text", "half a png", "half a jpeg", "gif"],
)
def test_what_is_no_image_is_the_clients_error(find, content):
    with pytest.raises(ValueError, match="the image cannot be read: it must be a whole JPEG or PNG file"):
        find(content)


def test_image_of_too_many_pixels_is_the_clients_error(find):
    with pytest.raises(ValueError, match="the image is 10000 x 8000: at most 50000000 pixels are read"):
        find(file(np.zeros((8000, 10_000), np.bool_)))


def test_failure_of_a_network_is_not_swallowed(load, as_bytes):
    def call(name, inputs):
        raise LookupError(name)

    with pytest.raises(LookupError, match="faces-propose"):
        load("faces").hooks.run({"image": as_bytes([file(ASTRONAUT)])}, call)


# served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    names = ",".join(["faces", *STAGES, "tabular"])
    with running(tmp_path_factory.mktemp("cache"), MODELS_INCLUDE=names) as process:
        yield process


async def ask(client, content):
    tensor = triton.InferInput("image", [1], "BYTES")
    answer = await client.infer("faces", [tensor.set_data_from_numpy(np.array([content], dtype=object))])
    return {name: answer.as_numpy(name) for name in ("boxes", "scores", "landmarks")}


def ask_all(server, *contents):
    async def asked():
        async with triton.InferenceServerClient(server.address, conn_limit=len(contents)) as client:
            return await asyncio.gather(*(ask(client, content) for content in contents))

    return asyncio.run(asked())


def assert_alike(answer, expected):
    assert answer["boxes"].shape == expected["boxes"].shape
    for name, output in expected.items():
        np.testing.assert_allclose(answer[name], output, atol=0.05)


def test_networks_are_tried_with_what_they_can_take(server):
    assert not any("probe of variant" in line for line in server.log)


def test_served_faces_are_those_of_plain_sessions(server, find):
    photographs = [ASTRONAUT, np.tile(ASTRONAUT, (2, 2, 1)), skimage.data.chelsea(), skimage.data.camera()]
    for photograph in photographs:
        [answer] = ask_all(server, file(photograph))
        assert_alike(answer, find(file(photograph)))


def test_requests_at_once_are_answered_as_alone(server, find):
    contents = [file(ASTRONAUT), file(skimage.data.chelsea()), file(scaled(ASTRONAUT, 0.5)), file(ASTRONAUT[:19])]
    expected = [find(content) for content in contents]
    for answer, alone in zip(ask_all(server, *contents * 4), expected * 4, strict=True):
        assert_alike(answer, alone)


def test_networks_are_no_business_of_clients(server):
    index = httpx.post(f"{server.url}/v2/repository/index", json={}, timeout=60, trust_env=False).json()
    assert {each["name"] for each in index if each.get("state") == "READY"} == {"faces", "tabular"}
    for name in STAGES:
        assert httpx.get(f"{server.url}/v2/models/{name}", timeout=60, trust_env=False).status_code == 404


def test_metadata_are_those_of_one_model(server):
    metadata = httpx.get(f"{server.url}/v2/models/faces", timeout=60, trust_env=False).json()
    assert [(each["name"], each["datatype"], each["shape"]) for each in metadata["inputs"]] == [("image", "BYTES", [1])]
    assert [(each["name"], each["shape"]) for each in metadata["outputs"]] == [
        ("boxes", [-1, 4]), ("scores", [-1]), ("landmarks", [-1, 5, 2]),
    ]  # fmt: skip


def test_what_is_no_image_is_answered_with_400(server):
    with pytest.raises(InferenceServerException, match="the image cannot be read") as caught:
        ask_all(server, b"not an image")
    assert caught.value.status() == "400"
