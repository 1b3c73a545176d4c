"""A few named threads, and how much waits for them."""

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from app.runtime.hook_pool import HookPool

pytestmark = pytest.mark.anyio


@pytest.fixture
def pool():
    pool = HookPool("hook", 2)
    yield pool
    pool.stop()


async def test_jobs_run_on_threads_of_that_name(pool):
    assert (await pool.run(lambda: threading.current_thread().name)).startswith("hook_")


async def test_arguments_results_and_failures_are_passed_through(pool):
    assert await pool.run(divmod, 7, 2) == (3, 1)
    assert await pool.run(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()])
async def test_a_job_that_wants_to_end_more_than_itself_only_fails(pool, error):
    """On the event loop the first would end the server, and the last never arrive."""

    def job():
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await pool.run(job)
    assert await pool.run(divmod, 7, 2) == (3, 1)


async def test_the_depth_counts_what_is_handed_over_and_not_finished(pool):
    opened = threading.Event()
    jobs = [asyncio.ensure_future(pool.run(opened.wait, 30)) for _ in range(5)]
    await asyncio.sleep(0)
    assert pool.depth == 5
    opened.set()
    assert await asyncio.gather(*jobs) == [True] * 5
    assert pool.depth == 0


async def test_a_job_that_nobody_awaits_any_more_is_not_begun(pool):
    opened = threading.Event()
    ran: list[str] = []
    busy = [asyncio.ensure_future(pool.run(opened.wait, 30)) for _ in range(2)]
    await asyncio.sleep(0)
    gone = asyncio.ensure_future(pool.run(ran.append, "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(*busy)
    await pool.run(lambda: None)
    assert ran == []
    assert pool.depth == 0


async def test_the_end_joins_the_threads():
    pool = HookPool("ending", 1)
    assert await pool.run(lambda: 1) == 1
    await asyncio.to_thread(pool.stop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ending")]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_job_made_is_gone_with_its_caller_and_waits_for_no_collection(fails):
    """A body of 60 MB that stays until the next full collection is memory that nothing counts."""

    class Large:
        pass

    pool = HookPool("hook", 1)  # whose one thread has dropped a job, on any machine, before it runs another
    kept, opened = [], threading.Event()

    def job():
        assert opened.wait(30)  # one that ends before anybody has asked to be told keeps nothing
        made = Large()
        kept.append(weakref.ref(made))
        if fails:
            raise ValueError("no")
        return made

    gc.disable()
    try:
        awaited = pool.run(job)
        opened.set()
        with contextlib.suppress(ValueError):
            await awaited
        del awaited
        for _ in range(3):
            await asyncio.sleep(0)
        await pool.run(lambda: None)  # the thread holds its last job until the next
        assert kept[0]() is None
    finally:
        gc.enable()
        pool.stop()
