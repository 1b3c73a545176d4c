"""Large pieces, one in a turn of the loop."""

import asyncio
from collections import deque
from typing import Any

import pytest

from app.api.turns import Turns
from tests.api.doors.harness import eventually, request

pytestmark = pytest.mark.anyio


async def test_one_goes_in_a_turn_and_none_in_the_turn_in_which_it_asks():
    turns, gone = Turns(asyncio.get_running_loop()), []

    def go(name, more):
        gone.append(name)
        if more:
            turns.ask(go, name, more - 1)

    turns.ask(go, "a", 1)
    turns.ask(go, "b", 0)
    turns.ask(go, "c", 1)
    seen = []
    for _ in range(7):
        seen.append("".join(gone))
        await asyncio.sleep(0)
    assert seen == ["", "a", "ab", "abc", "abca", "abcac", "abcac"]
    turns.ask(go, "d", 0)
    await asyncio.sleep(0)
    assert gone[-1] == "d"


async def test_one_that_fails_keeps_nobody_waiting():
    loop = asyncio.get_running_loop()
    gone: list[int] = []
    failures: list[type[BaseException]] = []
    loop.set_exception_handler(lambda _, context: failures.append(type(context["exception"])))
    turns = Turns(loop)
    turns.ask(lambda: gone.remove(0))
    turns.ask(gone.append, 1)
    await eventually(lambda: gone)
    turns.ask(gone.append, 2)
    await eventually(lambda: len(gone) == 2)
    assert failures == [ValueError]


@pytest.mark.parametrize("door", ["fast"])
async def test_large_bodies_of_all_connections_take_turns(server):
    clients = [await server.connect() for _ in range(3)]
    await eventually(lambda: len(server.connections) == 3)
    turns = {connection._answers.turns for connection in server.connections}
    assert len(turns) == 1
    asked = []

    class Noted(deque[Any]):
        def append(self, item):
            asked.append(item[0].__self__)
            super().append(item)

    turns.pop()._waiting = Noted()
    body = bytes(1 << 20)
    await asyncio.gather(*[client.send(request(body)) for client in clients])
    for client in clients:
        assert (await client.response()).body == body
    # The bodies, and of the answers all slices but the first.
    assert asked.count(asked[0]) >= 2
    assert len(set(asked)) == 6
