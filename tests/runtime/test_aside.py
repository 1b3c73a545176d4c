"""A process beside the server: started when it is needed, and again when it has died."""

import os
import signal

import pytest

from app.domain.errors import ServingError, ShuttingDown
from app.runtime.aside import Aside, Unavailable

pytestmark = pytest.mark.anyio

#: Doubles numbers, tells its own id when asked for it, and ends when told to.
COMMAND = """
import os
from app.runtime import hook_worker

def serve(channel):
    while True:
        try:
            question = channel.receive()
        except EOFError:
            return
        if question == "end":
            os._exit(3)
        channel.send(os.getpid() if question == "pid" else question * 2)

hook_worker.main(serve)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def aside():
    beside = Aside("beside", COMMAND)
    yield beside
    beside.close()


async def test_questions_are_answered_by_one_process_that_is_not_this_one(aside):
    answers = [aside.run(aside.ask, question) for question in (2, "pid", 3, "pid")]
    two, pid, three, again = [await answer for answer in answers]
    assert (two, three) == (4, 6)
    assert pid == again != os.getpid()


async def test_nothing_is_started_before_the_first_question(aside):
    assert aside._worker is None


async def test_a_process_that_died_idle_is_replaced(aside):
    pid = await aside.run(aside.ask, "pid")
    worker = aside._worker
    os.kill(pid, signal.SIGKILL)
    worker._process.wait()
    assert await aside.run(aside.ask, "pid") != pid


async def test_the_question_over_which_it_died_fails_and_the_next_is_answered(aside, caplog):
    with pytest.raises(ServingError, match="ended"):
        await aside.run(aside.ask, "end")
    assert "ended with status 3" in caplog.text
    assert await aside.run(aside.ask, 5) == 10


async def test_where_none_can_be_started_it_says_so(aside, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="/nowhere/python"):
        await aside.run(aside.ask, 1)
    monkeypatch.undo()
    assert await aside.run(aside.ask, 1) == 2


async def test_whoever_waits_can_be_told_the_end(aside):
    waiting = aside.run(aside.ask, 1)
    aside.give_up(ShuttingDown("bye"))
    with pytest.raises(ShuttingDown):
        await waiting
