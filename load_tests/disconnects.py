"""What is left of clients that go away: an empty queue, no execution, and a device that works for others.

A thousand clients wait behind one long execution and leave, in four ways. Then the only caller of an execution of five
seconds leaves after half a second.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from load_tests.connections import Connection
from load_tests.counters import counted
from load_tests.holding import STOPWATCH, holding, server_with, serving, turns_per_second, until
from load_tests.processes import Server
from load_tests.report import machine, spread, verdict
from load_tests.wire import head_of, infer_call, random_rows

MODEL, WIDTH = "left", 8

CALL = infer_call(MODEL, {"x": random_rows(1, WIDTH)})
HEAD = head_of(CALL)

#: When the only caller of a long execution leaves.
LEAVES_AFTER_SECONDS = 0.5


@dataclass(frozen=True)
class Way:
    """What a client sends after its request, before it leaves; `admitted` if that counts as a request of its own."""

    more: bytes
    leave: Callable[[Connection], None]
    admitted: bool = False


WAYS: Mapping[str, Way] = {
    "close": Way(b"", Connection.close),
    "reset": Way(b"", Connection.reset),
    "close within a second head": Way(HEAD[: len(HEAD) // 2], Connection.close),
    "close within a second body": Way(HEAD + CALL.body[: len(CALL.body) // 2], Connection.close, admitted=True),
}


@dataclass(frozen=True)
class Left:
    """What became of clients that left: seconds until the queue was empty, and whether all was counted as it should."""

    seconds: float
    right: bool


def leave(server: Server, way: Way, clients: int, turns: float) -> Left:
    """Let so many clients wait behind a long execution and leave; the server goes on."""
    before, held = serving(server, MODEL), counted(server, STOPWATCH)
    with holding(server, turns) as caller:
        connections = [Connection(server) for _ in range(clients)]
        for connection in connections:
            connection.send(HEAD + CALL.body + way.more)
        until(server, MODEL, lambda now: now["queue_depth"] == clients)
        for connection in connections:
            way.leave(connection)
        begun = time.perf_counter()
        until(server, MODEL, lambda now: now["queue_depth"] == 0)
        seconds = time.perf_counter() - begun
        went_on = counted(server, STOPWATCH).dispatches == held.dispatches
        status, _ = caller.answer()
    after = until(server, MODEL, lambda now: now["in_flight"] == 0)
    cancelled = after["dropped"].get("cancelled", 0) - before["dropped"].get("cancelled", 0)
    right = (
        went_on
        and status == 200
        and counted(server, STOPWATCH).dispatches == held.dispatches + 1
        and after["dispatches"] == before["dispatches"]
        and cancelled == clients * (1 + way.admitted)
    )
    server.post(CALL.path, CALL.body, CALL.headers)
    return Left(seconds, right and counted(server, MODEL).dispatches == before["dispatches"] + 1)


def forsake(server: Server, turns: float) -> Left:
    """Let the only caller of a long execution leave; the seconds until another request has its answer."""
    held = counted(server, STOPWATCH)
    with holding(server, turns) as caller, Connection(server) as other:
        time.sleep(LEAVES_AFTER_SECONDS)
        other.send(HEAD + CALL.body)
        until(server, MODEL, lambda now: now["queue_depth"] == 1)
        begun = time.perf_counter()
        caller.close()
        status, _ = other.answer()
        seconds = time.perf_counter() - begun
    return Left(seconds, status == 200 and counted(server, STOPWATCH).dispatches == held.dispatches)


def main(argv: Sequence[str] | None = None) -> int:
    """Print how fast nothing was left; 1 when it was not fast enough, or something was."""
    parser = argparse.ArgumentParser(prog="disconnects", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5, help="length of the long execution")
    parser.add_argument("--limit", type=float, default=100, help="most milliseconds until the queue is empty")
    parser.add_argument("--end-limit", type=float, default=500, help="most milliseconds until the device is free")
    arguments = parser.parse_args(argv)
    print(machine())
    with server_with(MODEL, WIDTH) as server:
        turns = arguments.seconds * turns_per_second(server)
        runs: list[Left] = []
        emptied: list[float] = []
        for name, way in WAYS.items():
            found = [leave(server, way, arguments.clients, turns) for _ in range(arguments.rounds)]
            took = [each.seconds * 1e3 for each in found]
            print(f"{arguments.clients} clients {name}: the queue is empty after {spread(took, '.1f')} ms", flush=True)
            emptied.append(median(took))
            runs += found
        found = [forsake(server, turns) for _ in range(arguments.rounds * len(WAYS))]
    took = [each.seconds * 1e3 for each in found]
    print(f"the only caller of {arguments.seconds:g} s leaves: the next is answered after {spread(took, '.1f')} ms")
    slowest, ended = max(emptied), median(took)
    wrong = sum(not each.right for each in runs + found)
    text = (
        f"the queue is empty after {slowest:.1f} ms (limit {arguments.limit:g}), a forsaken device free after "
        f"{ended:.1f} ms (limit {arguments.end_limit:g}), {wrong} of {len(runs + found)} runs miscounted"
    )
    return verdict(slowest <= arguments.limit and ended <= arguments.end_limit and not wrong, text)


if __name__ == "__main__":
    sys.exit(main())
