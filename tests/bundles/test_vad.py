"""The `vad` bundle on something like speech, alone and with others, and what its clients have to mind."""

import asyncio
import json
import runpy
import shutil

import httpx
import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from tests.bundles.conftest import BUNDLES
from tests.e2e.conftest import running

SPEAK = runpy.run_path(str(BUNDLES / "vad" / "speak.py"))
RATE = np.array(16_000)

#: A request waits so long for company; two rows fill the largest size of `raw`, and are not kept waiting.
WAIT = json.dumps({"raw": {"max_wait_ms": 1500}})


def pieces(vowels, seed=0):
    return SPEAK["cut"](SPEAK["speak"](vowels, seed))


def follow(answer, heard):
    """The scores of one stream: each piece with the state that came back with the one before."""
    state = np.zeros((2, 1, 128), np.float32)
    scores = []
    for piece in heard:
        outputs = answer(input=piece[None], state=state, sr=RATE)
        state = outputs["stateN"]
        scores.append(outputs["output"].item())
    return np.array(scores)


@pytest.fixture(scope="module")
def answer(serve):
    return serve("vad")


def test_voice_is_told_from_silence_and_noise(answer):
    scores = follow(answer, pieces("aieoauie"))
    assert (scores[:15] < 0.1).all()  # half a second of silence comes first
    assert (scores[18:60] > 0.5).all()
    assert scores[-1] < 0.1
    noise = 0.05 * np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    assert (follow(answer, SPEAK["cut"](noise)) < 0.1).all()


def test_streams_in_a_batch_have_their_own_states(answer):
    streams = [pieces(vowels, seed)[:40] for seed, vowels in enumerate(["aieoa", "uuoou", "eiaei"])]
    state = np.zeros((2, 3, 128), np.float32)
    together = []
    for heard in zip(*streams, strict=True):
        outputs = answer(input=np.stack(heard), state=state, sr=RATE)
        state = outputs["stateN"]
        together.append(outputs["output"][:, 0])
    for stream, scores in zip(streams, np.transpose(together), strict=True):
        np.testing.assert_allclose(scores, follow(answer, stream), atol=1e-5)


@pytest.mark.parametrize("rate", [8_000, 48_000, 0, -1])
def test_sound_of_another_rate_is_refused(load, rate):
    with pytest.raises(ValueError, match=f"sr is {rate}: this model hears sound of 16000 samples a second only"):
        load("vad").hooks.preprocess({"sr": np.array(rate)}, None)


def test_piece_without_the_end_of_the_one_before_does_not_fit(load):
    """The model would take it and answer wrongly."""
    tensor = load("vad").spec.client_inputs_by_name["input"]
    assert tensor.accepts((1, 576))
    assert not tensor.accepts((1, 512))


# served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The bundle, and as `raw` a copy without the hook that refuses other rates."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(BUNDLES / "vad", root / "vad")
    shutil.copytree(BUNDLES / "vad", root / "raw", ignore=shutil.ignore_patterns("hooks.py", "sample.npz"))
    manifest = (BUNDLES / "vad" / "manifest.yaml").read_text()
    (root / "raw" / "manifest.yaml").write_text(manifest.replace("[1, 2, 4, 8, 16, 32]", "[1, 2]"))
    with running(tmp_path_factory.mktemp("cache"), root, SCHEDULER_MODELS=WAIT, SCHEDULER_SIZING="fill") as process:
        yield process


def inputs(**tensors):
    made = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, list(array.shape), "INT64" if array.dtype == np.int64 else "FP32")
        made.append(tensor.set_data_from_numpy(array))
    return made


def test_rows_are_found_to_be_safe_in_batches(server):
    models = httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["models"]
    [vad] = [each for each in models if each["name"] == "vad"]
    assert vad["serving"]["batch_safety"] == "safe"


def test_streams_that_share_executions_are_answered_as_alone(server, answer):
    streams = [pieces("aie", seed)[:30] for seed in range(16)]
    asked = asyncio.run(_follow_all(server, streams))
    for stream, scores in zip(streams, asked, strict=True):
        np.testing.assert_allclose(scores, follow(answer, stream), atol=1e-4)
    models = httpx.get(f"{server.url}/status", timeout=60, trust_env=False).json()["models"]
    [vad] = [each["serving"] for each in models if each["name"] == "vad"]
    assert vad["dispatches"] < vad["requests"] == 16 * 30


async def _follow_all(server, streams):
    async with triton.InferenceServerClient(server.address, conn_limit=len(streams)) as client:

        async def one(stream):
            state = np.zeros((2, 1, 128), np.float32)
            scores = []
            for piece in stream:
                result = await client.infer("vad", inputs(input=piece[None], state=state, sr=RATE))
                state = result.as_numpy("stateN")
                scores.append(result.as_numpy("output").item())
            return scores

        return await asyncio.gather(*map(one, streams))


@pytest.mark.parametrize("rates", [(16_000, 16_000), (16_000, 8_000)])
def test_requests_merge_only_if_their_rates_are_the_same(server, rates):
    same = len(set(rates)) == 1

    async def ask():
        async with triton.InferenceServerClient(server.address, conn_limit=32) as client:
            state, piece = np.zeros((2, 1, 128), np.float32), pieces("a")[:1]
            asked = [
                client.infer("raw", inputs(input=piece, state=state, sr=np.array(rate)), parameters={"explain": True})
                for rate in (16 * rates if same else rates)  # many, since the first of them run alone
            ]
            return [answer.get_response() for answer in await asyncio.gather(*asked)]

    shared = [answer["parameters"]["batch_rows"] for answer in asyncio.run(ask())]
    assert max(shared) > 1 if same else max(shared) == 1


@pytest.mark.parametrize(
    ("length", "rate", "said"), [(512, 16_000, "input"), (576, 8_000, "sr is 8000: this model hears sound of 16000")]
)
def test_what_would_be_answered_wrongly_is_refused(server, length, rate, said):
    async def ask():
        async with triton.InferenceServerClient(server.address) as client:
            state, piece = np.zeros((2, 1, 128), np.float32), np.zeros((1, length), np.float32)
            await client.infer("vad", inputs(input=piece, state=state, sr=np.array(rate)))

    with pytest.raises(InferenceServerException, match=said) as caught:
        asyncio.run(ask())
    assert caught.value.status() == "400"
