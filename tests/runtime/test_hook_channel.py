"""Messages between the server and a hook process, both ends in one thread."""

import contextlib
import gc
import os
import socket

import numpy as np
import pytest

from app.runtime import hook_channel
from app.runtime.hook_channel import KEPT, LARGE, Channel


def descriptors(*names):
    """What is open in this process of memory by these names."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the directory itself
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(link for link in links if any(f"memfd:{name}" in link for name in names))


@pytest.fixture
def memory():
    """A second descriptor of the memory that the two ends share."""
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def ends(memory):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours, os.dup(memory)), Channel(theirs, os.dup(memory))


@pytest.fixture
def carry(ends):
    """Send a value to the other end and back."""

    def there_and_back(value):
        for sender, receiver in (ends, reversed(ends)):
            sender.send(value)
            value = receiver.receive()
        return value

    return there_and_back


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE])
def test_arrays_of_every_size_arrive(carry, size):
    sent = np.arange(size, dtype=np.uint32).astype(np.uint8)
    received = carry({"x": sent, "y": sent[::-1]})
    assert np.array_equal(received["x"], sent)
    assert np.array_equal(received["y"], sent[::-1])


@pytest.mark.parametrize("size", [10, LARGE - 100, LARGE, LARGE + 100, 3 * LARGE])
def test_what_is_no_array_arrives_whatever_its_size(carry, size):
    assert carry([b"x" * size, "y" * size]) == [b"x" * size, "y" * size]


def test_more_large_arrays_than_one_system_call_takes_arrive(carry):
    sent = [np.full(LARGE, number % 251, dtype=np.uint8) for number in range(1100)]
    assert all(np.array_equal(one, other) for one, other in zip(carry(sent), sent, strict=True))


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("writeable", [True, False])
def test_an_array_stays_as_writeable_as_it_was(carry, size, writeable):
    sent = np.zeros(size, dtype=np.uint8)
    sent.flags.writeable = writeable
    assert carry(sent).flags.writeable is writeable


def test_what_was_received_outlives_the_messages_that_follow(ends):
    sender, receiver = ends
    received = []
    for number in range(3):
        sender.send(np.full(LARGE, number, dtype=np.uint8))
        received.append(receiver.receive())
    assert [set(array.tolist()) for array in received] == [{0}, {1}, {2}]


def test_memory_is_kept_for_the_next_message_unless_it_is_much(carry, memory):
    carry(np.zeros(KEPT, dtype=np.uint8))
    assert os.fstat(memory).st_size == KEPT
    carry(np.zeros(KEPT + 1, dtype=np.uint8))
    assert os.fstat(memory).st_size == 0


def test_a_transfer_goes_on_where_the_kernel_stopped(memory):
    def write_little(descriptor, views, offset):
        return os.pwritev(descriptor, [views[0][:7]], offset)

    def read_little(descriptor, views, offset):
        return os.preadv(descriptor, [views[0][:5]], offset)

    sent = [memoryview(bytes(range(size))) for size in (10, 1, 7, 30)]
    received = [memoryview(bytearray(view.nbytes)) for view in sent]
    hook_channel._transfer(write_little, memory, sent)
    hook_channel._transfer(read_little, memory, received)
    assert received == sent


def test_memory_that_is_shorter_than_its_message_is_an_end(ends, memory):
    sender, receiver = ends
    sender.send(np.zeros(LARGE, dtype=np.uint8))
    os.ftruncate(memory, 10)
    with pytest.raises(EOFError, match="shorter"):
        receiver.receive()


def test_what_cannot_be_pickled_leaves_the_channel_as_it_was(ends):
    sender, receiver = ends
    with pytest.raises(AttributeError):
        sender.send([np.zeros(LARGE), lambda: None])
    sender.send("next")
    assert receiver.receive() == "next"


def test_a_finished_end_is_told_after_what_was_sent_and_may_still_receive(ends):
    sender, receiver = ends
    sender.send("last")
    sender.finish()
    assert receiver.receive() == "last"
    with pytest.raises(EOFError):
        receiver.receive()
    receiver.send("answer")
    assert sender.receive() == "answer"
    with pytest.raises(BrokenPipeError):
        sender.send("more")


def test_a_channel_that_nobody_holds_is_closed():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender, receiver = (
        Channel(ours, os.memfd_create("one of a pair")),
        Channel(theirs, os.memfd_create("other of a pair")),
    )
    del sender, ours
    gc.collect()
    with pytest.raises(EOFError):
        receiver.receive()
    del receiver, theirs
    gc.collect()
    assert descriptors("one of a pair", "other of a pair") == []
