"""Does serving notice that a large model is compiled and loaded beside it?

A model of 340 MB is loaded with a cold compile cache, over and over, while one client asks another model, of 5 ms an
execution, and another whether the server lives. Before and after, the same without a load, until there are as many
answers: of fewer, the 99th percentile would be another one.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from load_tests.connections import Connection
from load_tests.models import mlp, write_bundle
from load_tests.processes import Server, inference_server, threads_of
from load_tests.report import machine, progress, spread, verdict
from load_tests.treadmill import WIDTH, treadmill, turn_seconds
from load_tests.wire import head_of, infer_call, random_rows

LARGE, SERVED = "large", "served"

#: 340 MB of weights.
WIDTHS = (1024, 8192, 8192, 1024)

SERVED_SECONDS = 0.005

#: From an answer to the next question of the same client: some of the cores are left for the load.
PAUSE_SECONDS = 0.01

#: After an unload, until it is quiet.
SETTLE_SECONDS = 1.0

#: Longest load that is waited for.
LOAD_SECONDS = 300.0

_TOKEN = "load-test"

_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass(frozen=True)
class Phase:
    """What clients saw in one phase: 99th percentiles and medians of the answers, in seconds."""

    served: float
    served_median: float
    live: float
    answers: int

    @classmethod
    def of(cls, *parts: "Seen") -> "Phase":
        """What was seen in some stretches of time."""
        served, live = (np.concatenate([part[what] for part in parts]) for what in (SERVED, "live"))
        return cls(
            float(np.percentile(served, 99)), float(np.median(served)), float(np.percentile(live, 99)), len(served)
        )


#: Seconds that answers took, by what was asked.
Seen = Mapping[str, Sequence[float]]


class Clients:
    """Two clients that never stop; what they saw is taken stretch by stretch."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._seen: dict[str, list[float]] = {SERVED: [], "live": []}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """They ask while the block runs. Raises `RuntimeError` when one was not answered."""
        call = infer_call(SERVED, {"x": random_rows(1, WIDTH)})
        with ThreadPoolExecutor(2) as pool:
            clients = [
                pool.submit(self._ask, SERVED, head_of(call) + call.body),
                pool.submit(self._ask, "live", _LIVE),
            ]
            try:
                yield
            finally:
                self._stopped.set()
        for client in clients:
            client.result()

    def take(self) -> Seen:
        """What was seen since the last time."""
        seen, self._seen = self._seen, {SERVED: [], "live": []}
        return seen

    def take_quiet(self, seconds: float, answers: int = 0) -> Seen:
        """What is seen in so many seconds, or until so many answers came, whichever takes longer."""
        time.sleep(SETTLE_SECONDS)
        self.take()
        time.sleep(seconds)
        while len(self._seen[SERVED]) < answers and not self._stopped.wait(PAUSE_SECONDS):
            pass
        return self.take()

    def _ask(self, what: str, request: bytes) -> None:
        try:
            with Connection(self._server) as connection:
                while not self._stopped.wait(PAUSE_SECONDS):
                    begun = time.perf_counter()
                    connection.send(request)
                    status, body = connection.answer()
                    self._seen[what].append(time.perf_counter() - begun)
                    if status != 200:
                        raise RuntimeError(f"{what}: {status}: {body!r}")
        finally:
            self._stopped.set()  # without one of them nothing is worth waiting for


@dataclass(frozen=True)
class Load:
    """One load: its seconds, and of the child that compiled its CPU seconds, niceness, and threads at most."""

    seconds: float
    cpu: float
    niceness: int
    threads: int


def load(server: Server) -> Load:
    """Load the large model, and watch the child that compiles it."""
    before = {child.pid: sum(child.cpu()) for child in children_of(server)}
    cpu, niceness, threads = 0.0, 0, 0
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        loading = pool.submit(operate, server, "load")
        while not loading.done():
            time.sleep(0.1)
            for child in children_of(server):
                with suppress(OSError):  # it has ended
                    cpu = sum(child.cpu()) - before.get(child.pid, 0.0)
                    niceness = os.getpriority(os.PRIO_PROCESS, child.pid)
                    threads = max(threads, len(threads_of(child)))
        loading.result()
    return Load(time.monotonic() - begun, cpu, niceness, threads)


def children_of(server: Server) -> list[Server]:
    """The processes that threads of a server have started."""
    files = Path(f"/proc/{server.pid}/task").glob("*/children")
    return [Server("", int(pid)) for file in files for pid in file.read_text().split()]


def operate(server: Server, action: str) -> None:
    """Load or unload the large model."""
    path = f"/v2/repository/models/{LARGE}/{action}"
    request = urllib.request.Request(server.url + path, b"{}", {"Authorization": f"Bearer {_TOKEN}"})
    with urllib.request.urlopen(request, timeout=LOAD_SECONDS):
        pass


def make_new(model_file: Path, turn: int) -> None:
    """Make the model another one, for which no cache holds anything: fields that are appended to a message count."""
    with model_file.open("ab") as file:
        file.write(onnx.ModelProto(doc_string=f"turn {turn}").SerializeToString())


def main(argv: Sequence[str] | None = None) -> int:
    """Print what clients saw with and without a load; 1 when they saw too much of it."""
    parser = argparse.ArgumentParser(prog="beside", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8, help="quiet before each load")
    parser.add_argument("--limit", type=float, default=1.5, help="largest 99th percentile, against the quiet one")
    parser.add_argument("--live-limit", type=float, default=20, help="largest 99th percentile of liveness, in ms")
    arguments = parser.parse_args(argv)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = 'format_version: "1"\nbatching: {compiled_batch_sizes: [1, 8]}\n'
        write_bundle(root / "bundles", SERVED, treadmill(round(SERVED_SECONDS / turn_seconds())), manifest)
        settings = {
            "CACHE_DIR": str(root / "cache"),
            "MODEL_CONTROL_MODE": "explicit",
            "STARTUP_MODELS": SERVED,
            "ENDPOINTS_ADMIN_TOKEN": _TOKEN,
            "RUNTIME_COMPILE_CACHE_BYTES": "1",  # of entries that nobody uses, none
        }
        with inference_server(root / "bundles", **settings) as server:
            model_file = write_bundle(root / "bundles", LARGE, mlp(WIDTHS), manifest)
            phases = measure(server, model_file, arguments.rounds, arguments.seconds)
    ratios = [beside.served / quiet.served for quiet, beside in phases]
    lives = [beside.live * 1e3 for _, beside in phases]
    text = (
        f"beside a load the 99th percentile of another model is {spread(ratios)} times the quiet one (limit "
        f"{arguments.limit:g}), that of liveness {spread(lives, '.1f')} ms (limit {arguments.live_limit:g})"
    )
    return verdict(median(ratios) <= arguments.limit and median(lives) <= arguments.live_limit, text)


def measure(server: Server, model_file: Path, rounds: int, seconds: float) -> list[tuple[Phase, Phase]]:
    """(Quiet, beside a load), round by round."""
    phases, clients = [], Clients(server)
    with clients.at_work():
        for turn in range(rounds):
            progress(f"round {turn + 1} of {rounds}")
            make_new(model_file, turn)
            before = clients.take_quiet(seconds)
            loaded = load(server)
            during = clients.take()
            operate(server, "unload")
            after = clients.take_quiet(0, len(during[SERVED]) - len(before[SERVED]))
            quiet, beside = Phase.of(before, after), Phase.of(during)
            phases.append((quiet, beside))
            print(_told(quiet, beside, loaded), flush=True)
    return phases


def _told(quiet: Phase, beside: Phase, loaded: Load) -> str:
    return (
        f"served p50 {_ms(quiet.served_median)} -> {_ms(beside.served_median)} ms, p99 {_ms(quiet.served)} -> "
        f"{_ms(beside.served)} ms of {quiet.answers} and {beside.answers} answers; live p99 {_ms(quiet.live)} -> "
        f"{_ms(beside.live)} ms; the load took {loaded.seconds:.1f} s, its child {loaded.cpu / loaded.seconds:.2f} "
        f"cores on {loaded.threads} threads, nice {loaded.niceness}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


if __name__ == "__main__":
    sys.exit(main())
