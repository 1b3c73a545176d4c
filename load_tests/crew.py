"""Several processes of clients that start at one instant."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from load_tests.client import Plan, Seen, serve

#: Between the word to start and the start: every process has heard it by then.
LEAD_SECONDS = 0.1

#: Between two ticks.
TICK_SECONDS = 0.25

#: How long a process may take to begin.
BEGIN_SECONDS = 60.0


def usual_processes() -> int:
    """So many processes of clients leave most of the machine to a server on it."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))


def drive(plans: Sequence[Plan], begin: Callable[[], None], tick: Callable[[float], None]) -> list[Seen]:
    """Carry out every plan in a process of its own, all at once; what each saw.

    `begin` is called when all are connected and none has sent anything, `tick` with the seconds since the start, a few
    times a second until the last is done. Raises `RuntimeError` when a process dies.
    """
    spawn = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for plan in plans:
            ours, theirs = spawn.Pipe()
            processes.append(spawn.Process(target=serve, args=(theirs,), daemon=True))
            processes[-1].start()
            theirs.close()
            ours.send(plan)
            pipes.append(ours)
        for pipe in pipes:
            if not pipe.poll(BEGIN_SECONDS):
                raise RuntimeError(f"a process of clients was not connected after {BEGIN_SECONDS:g} s")
            _receive(pipe)
        begin()
        start = time.monotonic() + LEAD_SECONDS
        for pipe in pipes:
            pipe.send(start)
        return _collect(pipes, start, tick)
    finally:
        for process in processes:
            if process.is_alive() and len(pipes) < len(plans):
                process.terminate()
            process.join(5)
            process.kill()


def _collect(pipes: Sequence[Connection], start: float, tick: Callable[[float], None]) -> list[Seen]:
    seen: dict[Connection, Seen] = {}
    while len(seen) < len(pipes):
        for pipe in wait([each for each in pipes if each not in seen], TICK_SECONDS):
            assert isinstance(pipe, Connection)
            found = _receive(pipe)
            assert isinstance(found, Seen)
            seen[pipe] = found
        tick(time.monotonic() - start)
    return [seen[pipe] for pipe in pipes]


def _receive(pipe: Connection) -> Seen | None:
    try:
        found: Seen | None = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of clients died; what it said is above") from None
    return found
