"""The official client and its shared memory, against a real process."""

import asyncio
import contextlib
import os
import uuid

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.builders import rows_of, write_identity_bundle
from tests.e2e.conftest import running

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

ADMIN = {"Authorization": "Bearer the-admin-token"}

ROWS = 40_000
SIZE = rows_of(0, ROWS).nbytes


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "asgi"])
def offering(request, cache_dir, tmp_path_factory):
    """A server that offers shared memory; its model takes up to 64 rows at once."""
    root = tmp_path_factory.mktemp("bundles")
    write_identity_bundle(root, sizes=(64,))
    with running(
        cache_dir, root, ENDPOINTS_FAST_PATH=request.param, ENDPOINTS_SHARED_MEMORY="true",
        ENDPOINTS_ADMIN_TOKEN="the-admin-token",
    ) as server:  # fmt: skip
        yield server


@contextlib.contextmanager
def objects(*sizes):
    """Shared memory objects of these sizes, as the client makes them, and their keys."""
    keys = [f"/test-{uuid.uuid4().hex}" for _ in sizes]
    handles = [shm.create_shared_memory_region(key, key, size) for key, size in zip(keys, sizes, strict=True)]
    try:
        yield list(zip(keys, handles, strict=True))
    finally:
        for handle in handles:
            shm.destroy_shared_memory_region(handle)


def tensors(module, rows=ROWS, size=SIZE):
    """Input and output, both in shared memory: regions `in` and `out`, the output behind 64 bytes."""
    source, target = module.InferInput("x", [rows, 3], "FP32"), module.InferRequestedOutput("y")
    source.set_shared_memory("in", size)
    target.set_shared_memory("out", size, offset=64)
    return [source], [target]


def test_the_synchronous_client_sends_and_receives_by_shared_memory(offering):
    with (
        objects(SIZE, SIZE + 64) as [(in_key, source), (out_key, target)],
        triton.InferenceServerClient(offering.address, network_timeout=60) as client,
    ):
        assert "system_shared_memory" in client.get_server_metadata()["extensions"]
        client.unregister_system_shared_memory(headers=ADMIN)
        client.register_system_shared_memory("in", in_key, SIZE, headers=ADMIN)
        client.register_system_shared_memory("out", out_key, SIZE + 64, headers=ADMIN)
        assert [each["name"] for each in client.get_system_shared_memory_status()] == ["in", "out"]
        assert client.get_system_shared_memory_status("in")[0]["byte_size"] == SIZE
        inputs, outputs = tensors(triton)
        for start in (1, 2):
            shm.set_shared_memory_region(source, [rows_of(start, ROWS)])
            output = client.infer("m", inputs, outputs=outputs).get_output("y")
            assert output["parameters"]["shared_memory_byte_size"] == SIZE
            answered = shm.get_contents_as_numpy(target, np.float32, output["shape"], offset=64)
            np.testing.assert_array_equal(answered, rows_of(start, ROWS))
            del answered
        client.unregister_system_shared_memory("in", headers=ADMIN)
        with pytest.raises(InferenceServerException, match="no shared memory region 'in'"):
            client.infer("m", inputs, outputs=outputs)
        client.unregister_system_shared_memory(headers=ADMIN)
        assert client.get_system_shared_memory_status() == []


def test_the_asynchronous_client_sends_and_receives_by_shared_memory(offering):
    async def talk(in_key, out_key, source, target):
        async with triton_aio.InferenceServerClient(offering.address) as client:
            await client.register_system_shared_memory("in", in_key, SIZE, headers=ADMIN)
            await client.register_system_shared_memory("out", out_key, SIZE + 64, headers=ADMIN)
            shm.set_shared_memory_region(source, [rows_of(3, ROWS)])
            inputs, outputs = tensors(triton_aio)
            result = await client.infer("m", inputs, outputs=outputs)
            await client.unregister_system_shared_memory(headers=ADMIN)
            return result.get_output("y")

    with objects(SIZE, SIZE + 64) as [(in_key, source), (out_key, target)]:
        output = asyncio.run(talk(in_key, out_key, source, target))
        answered = shm.get_contents_as_numpy(target, np.float32, output["shape"], offset=64)
        np.testing.assert_array_equal(answered, rows_of(3, ROWS))
        del answered


def test_registering_needs_the_admin_token(offering):
    with triton.InferenceServerClient(offering.address) as client, objects(64) as [(key, _)]:
        with pytest.raises(InferenceServerException, match="admin token"):
            client.register_system_shared_memory("in", key, 64)
        assert client.get_system_shared_memory_status() == []


def test_an_owner_that_shortens_its_object_does_not_end_the_server(offering):
    with (
        objects(SIZE, SIZE + 64) as [(in_key, _), (out_key, _)],
        triton.InferenceServerClient(offering.address, network_timeout=60) as client,
    ):
        client.register_system_shared_memory("in", in_key, SIZE, headers=ADMIN)
        client.register_system_shared_memory("out", out_key, SIZE + 64, headers=ADMIN)
        inputs, outputs = tensors(triton)
        for key in (out_key, in_key):
            os.truncate(f"/dev/shm{key}", 4096)
            with pytest.raises(InferenceServerException, match="has 4096 bytes"):
                client.infer("m", inputs, outputs=outputs)
        client.unregister_system_shared_memory(headers=ADMIN)
        assert client.is_server_live()
        assert client.is_model_ready("m")
    assert offering.process.poll() is None
