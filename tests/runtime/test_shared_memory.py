"""Regions of shared memory: what they let in, and what their owners may do to them."""

import os
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from threading import Event, Thread

import pytest

from app.domain.errors import InvalidRequest, RegionNotFound, Unsupported
from app.runtime import shared_memory
from app.runtime.shared_memory import Region, Regions


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory of the objects."""
    monkeypatch.setattr(shared_memory, "DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.fixture
def region(place):
    """Bytes 4 to 12 of an object of 16."""
    (place / "object").write_bytes(bytes(range(16)))
    return Region("r", "/object", 4, 8)


def test_a_region_is_read_and_written_within_its_object(place, region):
    assert bytes(region.read(2, 3)) == bytes([6, 7, 8])
    region.write(7, b"\xff")
    assert (place / "object").read_bytes() == bytes([*range(11), 0xFF, *range(12, 16)])


def test_what_was_read_stays_as_it_was(place, region):
    read = region.read(0, 8)
    region.write(0, bytes(8))
    assert bytes(read) == bytes(range(4, 12))


@pytest.mark.parametrize(("offset", "size"), [(0, 9), (8, 1), (9, 0), (2**63, 1), (1, 2**64), (2**64 - 1, 2**64 - 1)])
def test_nothing_beyond_a_region_is_reached_though_its_object_goes_on(region, offset, size):
    with pytest.raises(InvalidRequest, match="'r' has 8 bytes"):
        region.read(offset, size)
    with pytest.raises(InvalidRequest, match="'r' has 8 bytes"):
        region.check(offset, size)


def test_nothing_is_written_beyond_a_region(place, region):
    with pytest.raises(InvalidRequest, match="'r' has 8 bytes"):
        region.write(4, bytes(5))
    assert (place / "object").read_bytes() == bytes(range(16))


def test_an_object_that_its_owner_shortens_is_an_error_and_no_signal(place, region):
    os.truncate(place / "object", 6)
    assert bytes(region.read(0, 2)) == bytes([4, 5])
    with pytest.raises(InvalidRequest, match="'/object' has 6 bytes"):
        region.read(0, 8)
    with pytest.raises(InvalidRequest, match="'/object' has 6 bytes"):
        region.write(0, bytes(8))
    assert (place / "object").stat().st_size == 6


def test_an_object_that_is_shortened_all_the_time_never_ends_the_process(place):
    size, ended = 1 << 20, Event()
    path = place / "object"
    path.write_bytes(bytes(size))
    region = Region("r", "object", 0, size)

    def shorten():
        while not ended.is_set():
            os.truncate(path, 0)
            os.truncate(path, size)

    owner = Thread(target=shorten)
    owner.start()
    try:
        for _ in range(200):
            try:
                assert len(region.read(0, size)) == size
                region.write(0, bytes(size))
            except InvalidRequest as error:
                assert "'object' has" in error.message  # noqa: PT017
    finally:
        ended.set()
        owner.join()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        ".",
        "..",
        "/..",
        "/../x",
        "a/b",
        "../object",
        "/./object",
        "x\0y",
        "k" * 256,
        "é" * 128,
        "/dev/shm/object",
    ],
)
def test_a_key_leads_nowhere_else(region, key):
    with pytest.raises(InvalidRequest, match="no name of a shared memory object"):
        Region("r", key, 0, 1)


def test_only_objects_are_opened_and_nothing_is_waited_for(place, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_bytes(bytes(8))
    (place / "link").symlink_to(secret)
    (place / "directory").mkdir()
    os.mkfifo(place / "pipe")
    for key, why in [("link", "cannot be opened"), ("directory", "cannot be opened"), ("pipe", "no shared memory"),
                     ("missing", "cannot be opened: No such file")]:  # fmt: skip
        with pytest.raises(InvalidRequest, match=why):
            Region("r", key, 0, 1)


@pytest.mark.parametrize(("offset", "size"), [(0, 17), (16, 1), (17, 1), (2**63, 1), (1, 2**64)])
def test_a_region_is_within_its_object_when_it_is_registered(region, offset, size):
    with pytest.raises(InvalidRequest, match="'object' has 16 bytes"):
        Region("r", "object", offset, size)


def test_a_failed_registration_leaves_no_descriptor(region):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(InvalidRequest):
            Region("r", "object", 0, 17)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_region_that_is_forgotten_serves_who_holds_it_and_is_closed_by_the_last(place, region):
    regions = Regions()
    before = len(os.listdir("/proc/self/fd"))
    regions.register("mine", "object", 0, 16)
    held = regions.hold(["mine"])
    regions.unregister("mine")
    (place / "object").unlink()
    with pytest.raises(RegionNotFound, match="'mine'"):
        regions.find("mine")
    assert bytes(held["mine"].read(0, 2)) == bytes([0, 1])
    assert len(os.listdir("/proc/self/fd")) == before + 1
    held.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_name_is_registered_once_until_it_is_forgotten(region):
    regions = Regions()
    regions.register("mine", "object", 0, 16)
    with pytest.raises(Unsupported, match="'mine' is registered already"):
        regions.register("mine", "object", 0, 8)
    assert regions.find("mine").byte_size == 16
    regions.unregister("mine")
    regions.unregister("mine")
    regions.register("mine", "object", 0, 8)
    assert regions.find("mine").byte_size == 8


def test_a_request_that_names_an_unknown_region_is_wrong_itself():
    with pytest.raises(InvalidRequest) as error:
        Regions().hold(["missing"])
    assert error.value.code == "region_not_found"


@contextmanager
def real(size):
    memory = SharedMemory(create=True, size=size)
    try:
        yield memory
    finally:
        memory.close()
        memory.unlink()


def test_what_other_programs_call_shared_memory_is_found_under_its_key():
    with real(16) as memory:
        memory.buf[:3] = b"abc"
        region = Region("r", "/" + memory.name, 0, 16)
        assert bytes(region.read(0, 3)) == b"abc"
        region.write(1, b"X")
        assert bytes(memory.buf[:3]) == b"aXc"
