"""The hot path without sockets: that it is the whole of it, and that every request is answered."""

import time

import numpy as np
import pytest

from load_tests.door import CONNECTIONS, WIDTH, Door, opcodes
from load_tests.wire import random_rows

pytestmark = pytest.mark.anyio


async def test_every_request_of_a_turn_is_answered_with_its_own_row():
    door = Door(time.monotonic)
    await door.turns(2)
    head, _, body = door.last.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert np.frombuffer(body[-4 * WIDTH :], np.float32).tolist() == random_rows(1, WIDTH)[0].tolist()


@pytest.mark.plain
async def test_bytecode_is_counted_from_the_connection_to_the_scheduler_and_back():
    door = Door(time.monotonic)
    await door.turns(2)
    found = await opcodes(door)
    assert found["fastpath.FastPathProtocol.data_received"] > 10 * CONNECTIONS
    assert {"scheduler.Scheduler.enqueue", "executor.Executor.execute", "answers.Answers.respond"} <= found.keys()
