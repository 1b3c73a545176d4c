"""Is a request whose deadline passes in the queue answered then, although the device is busy with something long?

The device is held by one execution of about five seconds. First one request at a time, its deadline in the header or
in the parameter `timeout`; then many that wait at once, with different deadlines. Times are the client's: from before
the request is sent until its answer can be read.
"""

import argparse
import selectors
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from load_tests.connections import PATIENCE_SECONDS, Connection
from load_tests.counters import counted
from load_tests.holding import STOPWATCH, held, holding, server_with, serving, turns_per_second
from load_tests.processes import Server
from load_tests.report import machine, spread, verdict
from load_tests.wire import head_of, infer_call, random_rows

MODEL, WIDTH = "waiting", 8

#: The event loop counts in whole milliseconds, from when its turn began.
EARLY_SECONDS = 0.002

#: Between two of the many requests: what comes late is to be the answer, not the request.
PACE_SECONDS = 0.002


@dataclass(frozen=True)
class Answer:
    """How one request ended: `late` seconds after its deadline, `while_held` if the long execution went on."""

    late: float
    status: int
    code: str
    while_held: bool

    @property
    def right(self) -> bool:
        """Whether it was refused because its deadline had passed, and in spite of the long execution."""
        in_time = self.late > -EARLY_SECONDS
        return in_time and self.while_held and (self.status, self.code) == (504, "deadline_exceeded")


def by_header(seconds: float) -> bytes:
    """A request whose deadline its head tells."""
    call = infer_call(MODEL, {"x": random_rows(1, WIDTH)})
    return head_of(call, X_Request_Timeout_Ms=str(round(seconds * 1e3))) + call.body


def by_parameter(seconds: float) -> bytes:
    """A request whose deadline its JSON part tells, as tritonclient does it."""
    call = infer_call(MODEL, {"x": random_rows(1, WIDTH)}, timeout=round(seconds * 1e6))
    return head_of(call) + call.body


WAYS = {"header": by_header, "parameter": by_parameter}


def ask(server: Server, requests: Sequence[tuple[float, bytes]]) -> list[Answer]:
    """Send requests, each with the seconds it allows, one shortly after the other; how they were answered."""
    answers: list[tuple[float, int, str]] = []
    executions = counted(server, STOPWATCH).dispatches
    with selectors.DefaultSelector() as selector:

        def read(timeout: float) -> None:
            """Read what has come, waiting so many seconds for it."""
            ready = selector.select(timeout)
            now = time.monotonic()
            for key, _ in ready:
                selector.unregister(key.fileobj)
                connection, due = key.data
                with connection:
                    status, body = connection.answer()
                answers.append((now - due, status, str(orjson.loads(body).get("code"))))

        for seconds, data in requests:
            connection, due = Connection(server), time.monotonic() + seconds
            connection.send(data)
            selector.register(connection.socket, selectors.EVENT_READ, (connection, due))
            read(PACE_SECONDS)
        while missing := len(requests) - len(answers):
            read(PATIENCE_SECONDS)
            if missing == len(requests) - len(answers):
                raise RuntimeError(f"{missing} requests were never answered")
    goes_on = held(serving(server, STOPWATCH)) and counted(server, STOPWATCH).dispatches == executions
    return [Answer(*answer, goes_on) for answer in answers]


def measure(server: Server, arguments: argparse.Namespace) -> list[Answer]:
    """One at a time by either way, then many at once; a line for each."""
    turns = arguments.seconds * turns_per_second(server)
    seen: list[Answer] = []
    for name, request in WAYS.items():
        found = []
        for _ in range(arguments.rounds):
            with holding(server, turns):
                found += ask(server, [(arguments.timeout, request(arguments.timeout))])
        seen += found
        took = spread([arguments.timeout + each.late for each in found], ".4f")
        print(f"deadline of {arguments.timeout:g} s by {name}: answered after {took} s", flush=True)
    random = np.random.default_rng(1)
    for _ in range(arguments.rounds):
        allowed = random.uniform(0.5, arguments.seconds / 2, arguments.clients).round(3)
        ways = random.choice(list(WAYS), arguments.clients)
        with holding(server, turns):
            found = ask(server, [(each, WAYS[way](each)) for each, way in zip(allowed, ways, strict=True)])
        seen += found
        late = [each.late * 1e3 for each in found]
        print(f"{arguments.clients} at once: answered {spread(late, '.1f')} ms after their deadlines", flush=True)
    return seen


def main(argv: Sequence[str] | None = None) -> int:
    """Print when the answers came; 1 when one came too late, too early, or said anything else."""
    parser = argparse.ArgumentParser(prog="expiry", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5, help="length of the long execution")
    parser.add_argument("--timeout", type=float, default=0.5, help="seconds that a single request allows")
    parser.add_argument("--clients", type=int, default=200, help="requests that wait at once")
    parser.add_argument("--limit", type=float, default=50, help="most milliseconds after a deadline")
    arguments = parser.parse_args(argv)
    print(machine())
    with server_with(MODEL, WIDTH) as server:
        seen = measure(server, arguments)
        executions = counted(server, MODEL).dispatches
    latest, wrong = max(each.late for each in seen) * 1e3, sum(not each.right for each in seen)
    text = (
        f"{len(seen)} deadlines passed in the queue, answered at most {latest:.1f} ms late (limit {arguments.limit:g})"
    )
    met = latest <= arguments.limit and not wrong and not executions
    return verdict(met, f"{text}, {wrong} wrong answers, {executions} executions for them")


if __name__ == "__main__":
    sys.exit(main())
