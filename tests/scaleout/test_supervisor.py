"""How children are kept running. Real processes, small ones."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from app.scaleout.supervisor import Backoff, Child
from tests.processes import wait_ended

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_a_child_that_ends_is_waited_for_longer_each_time():
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_after_a_minute_it_counts_as_having_worked():
    backoff = Backoff()
    assert [backoff.after(lived) for lived in (0.1, 59.0, 60.0, 0.1)] == [0.0, 1.0, 0.0, 1.0]


def child(code, **options):
    return Child("c", [sys.executable, "-c", code], os.environ, **options)


async def run(one, until):
    """Run a child until it says so; what it is asked then happens before it ends."""
    running = asyncio.ensure_future(one.run())
    await asyncio.wait_for(until.wait(), 30)
    one.stop(signal.SIGTERM)
    await asyncio.wait_for(running, 30)


async def test_what_ends_is_started_again_and_no_more_once_it_is_stopped():
    again = asyncio.Event()

    def started():
        if one.starts == 2:
            again.set()

    one = child("import sys; sys.exit(3)", after=started)
    await run(one, again)
    assert one.starts == 2
    assert one.pid is None


async def test_what_ends_is_started_again_whoever_still_holds_its_log(tmp_path):
    """As a process that a hook has started."""
    again, pids = asyncio.Event(), tmp_path / "pids"

    def started():
        if one.starts == 2:
            again.set()

    code = f"import subprocess; print(subprocess.Popen(['sleep', '600']).pid, file=open({str(pids)!r}, 'a'))"
    one = child(code, after=started)
    await run(one, again)
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)


async def test_it_goes_on_where_nobody_reads_the_log_any_more(monkeypatch, tmp_path):
    class Gone:
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    file, done = tmp_path / "done", asyncio.Event()
    code = f"print(('x' * 999 + '\\n') * 8_000); open({str(file)!r}, 'w')"

    def started():
        if one.starts == 2:
            done.set()

    one = child(code, after=started)
    await run(one, done)
    assert file.exists()


async def test_what_it_says_has_its_name(capfd):
    said = asyncio.Event()

    def started():
        if one.starts == 2:
            said.set()

    one = child(
        "print('hello'); print('{\"message\": \"json\"}'); print('x' * 3_000_000); print('after')", after=started
    )
    await run(one, said)
    lines = capfd.readouterr().err.splitlines()
    assert "[c] hello" in lines
    assert '{"from": "c", "message": "json"}' in lines
    assert "[c] after" in lines


async def test_it_is_in_a_group_of_its_own_so_that_a_terminal_does_not_signal_it_twice(tmp_path):
    file, written = tmp_path / "group", asyncio.Event()
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpgrp())); time.sleep(60)"
    one = child(code)
    running = asyncio.ensure_future(one.run())
    while not (file.exists() and file.read_text()):
        await asyncio.sleep(0.01)
    written.set()
    assert int(file.read_text()) == one.pid != os.getpgrp()
    one.stop(signal.SIGTERM)
    await asyncio.wait_for(running, 30)


async def test_a_program_that_is_not_there_is_tried_again_and_stops():
    started = asyncio.Event()
    one = Child("c", ["/nowhere/at/all"], os.environ, after=started.set)
    await run(one, started)


async def test_it_dies_with_its_parent(tmp_path):
    """The parent is killed, so that it cannot see to it."""
    file = tmp_path / "pid"
    inner = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    outer = (
        "import asyncio, os, sys; from app.scaleout.supervisor import Child; "
        f"asyncio.run(Child('c', [sys.executable, '-c', {inner!r}], os.environ).run())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", outer, cwd=Path(__file__).parents[2])
    while not (file.exists() and file.read_text()):
        await asyncio.sleep(0.01)
    parent.kill()
    await parent.wait()
    await asyncio.to_thread(wait_ended, int(file.read_text()))
