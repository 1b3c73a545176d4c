"""What the driver of the device is asked, and how it is understood when it refuses."""

import ctypes
import gc

import numpy as np
import pytest

from app.backends.block import DeviceBlock
from app.backends.cuda import CudaDriver
from app.backends.sessions import translate
from app.backends.slab import DeviceSlab, HostSlab
from app.domain.errors import OutOfMemory
from tests.backends.devices import HostDriver


@pytest.fixture
def host():
    return HostDriver()


@pytest.fixture
def driver(host):
    return CudaDriver(0, host)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.bin"
    np.arange(100, dtype=np.float32).tofile(path)
    return path


def open_slab(file, driver):
    return DeviceSlab(file, driver, HostSlab(file).device)


def content(slab):
    return np.ctypeslib.as_array((ctypes.c_float * 100).from_address(slab.address))


def test_memory_is_what_the_device_says(driver, host):
    address = driver.allocate(4000)
    memory = driver.memory()
    assert memory.limit == driver.total_bytes == host.TOTAL
    assert memory.in_use >= 4000
    driver.free(address)
    assert driver.memory().in_use == 0


def test_the_context_is_taken_once_and_left_as_it_was_found(driver, host):
    driver.free(driver.allocate(10))
    host.status["cuMemGetInfo_v2"] = 1
    with pytest.raises(OSError, match="CUDA error 1 "):
        driver.memory()
    assert (host.retained, host.depth) == (1, 0)


def test_a_slab_holds_the_file_and_is_complete_when_it_is_there(driver, host, file):
    slab = open_slab(file, driver)
    np.testing.assert_array_equal(content(slab), np.arange(100))
    assert host.calls.index("cuStreamSynchronize") > host.calls.index("cuMemcpyHtoD_v2")
    slab.close()
    slab.close()
    assert host.blocks == {}


def test_a_slab_that_nobody_has_is_freed(driver, host, file):
    slab = open_slab(file, driver)
    assert len(host.blocks) == 1
    del slab
    gc.collect()
    assert host.blocks == {}


def test_a_slab_that_cannot_be_filled_is_freed(driver, host, file):
    host.status["cuMemcpyHtoD_v2"] = 700
    with pytest.raises(OSError, match="700") as lost:
        open_slab(file, driver)
    assert translate(lost.value).code == "device_lost"
    del lost
    gc.collect()
    assert host.blocks == {}


def test_a_full_device_is_out_of_memory(driver, host, file):
    host.status["cuMemAlloc_v2"] = 2
    with pytest.raises(MemoryError) as full:
        open_slab(file, driver)
    assert isinstance(translate(full.value), OutOfMemory)


def test_a_call_lets_another_thread_record_and_leaves_the_thread_as_it_was(driver, host):
    driver.free(driver.allocate(10))
    assert host.modes == {"cuMemAlloc_v2": 2, "cuMemFree_v2": 2}
    assert host.mode == 0
    with pytest.raises(KeyError), driver.beside_captures():
        raise KeyError
    assert host.mode == 0


def test_what_is_copied_to_the_host_is_complete(driver, host):
    block = DeviceBlock(400, driver, None)
    block.host[:400] = np.arange(100, dtype=np.float32).view(np.uint8)
    block.upload(400)
    block.host[:] = 0
    host.calls.clear()
    block.download(200, 200)
    np.testing.assert_array_equal(block.host.view(np.float32), [*[0] * 50, *range(50, 100)])
    assert host.calls.index("cuCtxSynchronize") < host.calls.index("cuMemcpyDtoH_v2")
    block.close()
    block.close()
    assert (host.blocks, host.pinned) == ({}, {})


def test_a_block_that_nobody_has_is_freed(driver, host):
    block = DeviceBlock(400, driver, None)
    assert (len(host.blocks), len(host.pinned)) == (1, 1)
    del block
    gc.collect()
    assert (host.blocks, host.pinned) == ({}, {})


def test_a_block_is_pageable_where_nothing_may_be_pinned(driver, host):
    host.status["cuMemAllocHost_v2"] = 1
    block = DeviceBlock(400, driver, None)
    block.upload(400)
    assert host.pinned == {}
    block.close()
    assert host.blocks == {}


def test_a_device_and_its_driver_have_a_name(driver):
    assert driver.identity == "Host, driver 12080"


def test_a_device_that_is_not_there_is_an_error(host):
    host.status["cuDeviceGet"] = 101
    with pytest.raises(OSError, match="101"):
        CudaDriver(7, host)


def test_on_the_host_the_file_itself_is_the_slab(file):
    slab = HostSlab(file)
    np.testing.assert_array_equal(content(slab), np.arange(100))
    assert slab.device.device_type() == slab.device.cpu()
    slab.close()
    slab.close()
