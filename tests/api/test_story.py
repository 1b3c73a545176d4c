"""A coroutine that runs without a task."""

import asyncio

import pytest

from app.api.story import Story

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Told:
    """Begins a story and keeps how it ended."""

    def __init__(self, coroutine):
        self.ends: list[BaseException | None] = []
        self.story = Story(coroutine, self.ended)
        self.story.begin()

    def ended(self, story, result, error):
        assert story is self.story
        self.result = result
        self.ends.append(error)


def future():
    return asyncio.get_running_loop().create_future()


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_story_without_waiting_has_ended_when_begin_returns():
    seen = []

    async def tell():
        seen.append(1)
        return "told"

    told = Told(tell())
    assert (told.ends, told.result) == ([None], "told")
    assert seen == [1]


async def test_a_story_runs_to_its_first_future_and_goes_on_with_the_result():
    first, second, seen = future(), future(), []

    async def inner():
        return await first

    async def tell():
        seen.append(await inner())
        seen.append(await second)

    told = Told(tell())
    first.set_result("a")
    await turns()
    assert (seen, told.ends) == (["a"], [])
    second.set_result("b")
    await turns()
    assert (seen, told.ends) == (["a", "b"], [None])


async def test_a_done_future_is_not_waited_for():
    done = future()
    done.set_result(7)

    async def tell():
        assert await done == 7

    assert Told(tell()).ends == [None]


async def test_a_failed_future_raises_where_it_is_awaited():
    waited = future()

    async def tell():
        with pytest.raises(KeyError):
            await waited

    told = Told(tell())
    waited.set_exception(KeyError("x"))
    await turns()
    assert told.ends == [None]


async def test_what_a_story_raises_is_told():
    waited = future()

    async def tell():
        await waited
        raise ValueError("end")

    told = Told(tell())
    waited.set_result(None)
    await turns()
    assert [str(error) for error in told.ends] == ["end"]


async def test_a_cancelled_story_is_told_where_it_waits_and_ends():
    waited, cleaned = future(), []

    async def tell():
        try:
            await waited
        finally:
            cleaned.append(True)

    told = Told(tell())
    told.story.cancel()
    await turns()
    assert cleaned == [True]
    assert [type(error) for error in told.ends] == [asyncio.CancelledError]
    assert waited.cancelled()


async def test_a_story_that_is_cancelled_between_result_and_resumption_is_cancelled():
    waited, cleaned = future(), []

    async def tell():
        try:
            await waited
        except asyncio.CancelledError:
            cleaned.append(True)
            raise

    told = Told(tell())
    waited.set_result("too late")
    told.story.cancel()
    await turns()
    assert cleaned == [True]
    assert [type(error) for error in told.ends] == [asyncio.CancelledError]


async def test_an_ended_story_is_cancelled_in_vain():
    async def tell():
        return None

    told = Told(tell())
    told.story.cancel()
    await turns()
    assert told.ends == [None]


async def test_a_story_may_gather_and_may_catch_its_cancellation():
    one, two, after = future(), future(), future()

    async def tell():
        try:
            await asyncio.gather(one, two)
        except asyncio.CancelledError:
            assert await after == "cleaned"

    told = Told(tell())
    told.story.cancel()
    await turns()
    assert told.ends == []
    after.set_result("cleaned")
    await turns()
    assert told.ends == [None]
    assert one.cancelled()
    assert two.cancelled()


async def test_a_story_may_give_way_for_a_turn():
    seen = []

    async def tell():
        await asyncio.sleep(0)
        seen.append(1)

    told = Told(tell())
    assert seen == []
    await turns()
    assert (seen, told.ends) == ([1], [None])
