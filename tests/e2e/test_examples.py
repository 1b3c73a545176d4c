"""The bundles with hooks, served: raw bytes in, answers out, by JSON and by binary, alone and coalesced."""

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import skimage.data
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from PIL import Image

ASK_MAGIKA = """
import json, pathlib, sys
from magika import Magika
magika = Magika()
results = [magika.identify_path(pathlib.Path(path)) for path in json.load(sys.stdin)]
print(json.dumps([[str(result.output.label), result.score] for result in results]))
"""


def files():
    """Files of different kinds that every installation has."""
    roots = [Path(json.__file__).parents[1], Path(np.__file__).parents[1]]
    by_kind: dict[str, list[Path]] = {}
    for root in roots:
        for path in sorted(root.rglob("*"))[:20000]:
            if path.is_file() and path.stat().st_size < 1_000_000:
                found = by_kind.setdefault(path.suffix, [])
                if len(found) < 3:
                    found.append(path)
    return [path for paths in by_kind.values() for path in paths][:60]


@pytest.fixture(scope="module")
def kinds():
    """(file, label, score) as the package's own interface has it, from a process of its own."""
    paths = files()
    assert len(paths) >= 40
    question = json.dumps([str(path) for path in paths])
    command = [sys.executable, "-W", "ignore", "-c", ASK_MAGIKA]
    answer = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    labels = json.loads(answer.stdout)
    assert len({label for label, _ in labels}) >= 8
    return [(path, *label) for path, label in zip(paths, labels, strict=True)]


def bytes_input(name, contents, binary=True, module=triton):
    tensor = module.InferInput(name, [len(contents)], "BYTES")
    tensor.set_data_from_numpy(np.array(contents, dtype=object), binary_data=binary)
    return tensor


def check_kinds(answer, expected, atol=1e-2):
    """ONNX Runtime itself answers some files up to 0.003 apart alone and in a batch; labels never differ."""
    assert [label.decode() for label in answer.as_numpy("label")] == [label for _, label, _ in expected]
    np.testing.assert_allclose(answer.as_numpy("score"), [score for *_, score in expected], atol=atol)


def test_filetype_agrees_with_the_package_one_by_one_and_in_batches(either, kinds):
    with triton.InferenceServerClient(either.address, network_timeout=60) as client:
        for found in kinds:
            alone = client.infer("filetype", [bytes_input("content", [found[0].read_bytes()])])
            check_kinds(alone, [found], atol=1e-5)
        contents = [path.read_bytes() for path, *_ in kinds]
        check_kinds(client.infer("filetype", [bytes_input("content", contents)]), kinds)


def test_filetype_agrees_when_its_callers_are_coalesced(server, kinds):
    async def ask():
        async with triton_aio.InferenceServerClient(server.address, conn_limit=32) as client:

            async def one(found):
                content = bytes_input("content", [found[0].read_bytes()], module=triton_aio)
                check_kinds(await client.infer("filetype", [content]), [found])

            await asyncio.gather(*[one(found) for found in kinds])

    asyncio.run(ask())
    models = httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["models"]
    serving = next(model["serving"] for model in models if model["name"] == "filetype")
    assert set(map(int, serving["batch_sizes"])) <= {1, 2, 4}
    assert any(int(size) > 1 for size in serving["batch_sizes"])


def test_filetype_takes_bytes_as_json_numbers_and_text(http, kinds):
    path, label, _ = next(found for found in kinds if found[0].suffix == ".so")
    content = list(path.read_bytes())
    tensor = {"name": "content", "shape": [1, len(content)], "datatype": "UINT8", "data": content}
    outputs = http.post("/v2/models/filetype/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert outputs[0] == {"name": "label", "datatype": "BYTES", "shape": [1], "data": [label]}
    path, label, _ = next(found for found in kinds if found[0].suffix == ".py")
    tensor = {"name": "content", "shape": [1], "datatype": "BYTES", "data": [path.read_text()]}
    outputs = http.post("/v2/models/filetype/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert outputs[0]["data"] == [label]


def page(angle, kind="PNG"):
    """The page, turned clockwise by `angle` degrees, as a file."""
    file = io.BytesIO()
    Image.fromarray(skimage.data.page()).rotate(-angle, expand=True).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_orientation_tells_how_a_page_was_turned(either, kind):
    angles = [0, 90, 180, 270]
    with triton.InferenceServerClient(either.address, network_timeout=60) as client:
        for angle in angles:
            answer = client.infer("orientation", [bytes_input("image", [page(angle, kind)])])
            assert answer.as_numpy("angle").tolist() == [angle]
            assert answer.as_numpy("scores").max() > 0.9
        answer = client.infer("orientation", [bytes_input("image", [page(angle, kind) for angle in angles])])
        assert answer.as_numpy("angle").tolist() == angles


def test_orientation_takes_an_image_as_json(http):
    content = list(page(90, "JPEG"))
    tensor = {"name": "image", "shape": [1, len(content)], "datatype": "UINT8", "data": content}
    outputs = http.post("/v2/models/orientation/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert outputs[0]["data"] == [90]


def test_orientation_names_the_best_classes(server):
    wanted = triton.InferRequestedOutput("scores", class_count=2)
    with triton.InferenceServerClient(server.address) as client:
        answer = client.infer("orientation", [bytes_input("image", [page(180)])], outputs=[wanted])
    best = answer.as_numpy("scores")[0, 0].decode()
    assert best.endswith(":2:180")


def test_a_file_that_is_no_image_fails_alone(server):
    async def ask():
        async with triton_aio.InferenceServerClient(server.address, conn_limit=8) as client:

            async def one(content):
                return await client.infer("orientation", [bytes_input("image", [content], module=triton_aio)])

            contents = [page(0), b"not an image", page(90), page(180)]
            return await asyncio.gather(*[one(content) for content in contents], return_exceptions=True)

    first, bad, second, third = asyncio.run(ask())
    assert [answer.as_numpy("angle")[0] for answer in (first, second, third)] == [0, 90, 180]
    assert bad.status() == "400"
    assert "image" in bad.message()
