"""What is done once when nothing can be executed any more."""

import asyncio

import pytest

from app.domain.errors import ServingError
from app.engine.watchdog import Watchdog

pytestmark = pytest.mark.anyio


class Died(BaseException):
    """What no execution may raise."""


async def test_a_dispatcher_that_died_is_told_once(stage):
    stage.load()
    told = []
    watchdog = Watchdog(stage.dispatcher, 0.02)
    watchdog.on_lost = lambda: told.append(stage.dispatcher.alive)
    watchdog.start()
    assert stage.answer() == [0.0]
    assert told == []

    def die(*_):
        raise Died

    stage.backend.on_run = die
    with pytest.raises(ServingError, match="died"):
        stage.answer()
    while not told:
        await asyncio.sleep(0)
    for _ in range(3):
        watchdog._look()
    watchdog.stop()
    assert told == [False]


async def test_an_execution_that_cannot_be_ended_is_told(stage):
    stage.load()
    hold = stage.hold_run()
    told = []
    watchdog = Watchdog(stage.dispatcher, 0.02)
    watchdog.on_lost = lambda: told.append(watchdog.device_lost)
    stage.ask()
    await asyncio.to_thread(hold.wait_entered)
    watchdog.start()
    while not told:
        await asyncio.sleep(0)
    hold.open()
    watchdog.stop()
    assert told == [True]
