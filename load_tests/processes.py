"""Starts servers in child processes and reads from the kernel what they cost."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

START_SECONDS = 300.0

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A running child process that answers on `url`; `started_in` are the seconds until it did.

    Without a pid it is one that runs somewhere else; `token` is the bearer token that it may want.
    """

    url: str
    pid: int
    started_in: float = 0.0
    token: str | None = None

    def cpu(self) -> tuple[float, float]:
        """User and system seconds of the process so far."""
        return _times(Path(f"/proc/{self.pid}/stat"))

    def get(self, path: str) -> bytes:
        """The body of a GET. Raises `OSError` when the answer is not a success."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=60) as response:
            return bytes(response.read())

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The body of the answer to a POST. Raises `OSError` when it is not a success."""
        request = urllib.request.Request(self.url + path, body, dict(headers))
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())

    def models(self) -> list[dict[str, Any]]:
        """What `/status` of our server says of every model."""
        models: list[dict[str, Any]] = json.loads(self.get("/status"))["models"]
        return models

    def node(self) -> dict[str, Any]:
        """What `/status` of our server says of it all."""
        node: dict[str, Any] = json.loads(self.get("/status"))
        return node


def family(pid: int) -> list[int]:
    """A process and its living descendants."""
    found, parents = [pid], [pid]
    while parents:
        children: list[int] = []
        for parent in parents:
            try:
                lists = [(task / "children").read_text() for task in Path(f"/proc/{parent}/task").iterdir()]
            except OSError:  # it has just ended
                continue
            children += [int(each) for each in " ".join(lists).split()]
        found += children
        parents = children
    return found


def cpu_of(pids: Sequence[int]) -> float:
    """Seconds that these processes have computed so far; what has ended counts nothing."""
    total = 0.0
    for pid in pids:
        try:
            total += sum(_times(Path(f"/proc/{pid}/stat")))
        except OSError:
            continue
    return total


@dataclass(frozen=True)
class ThreadCost:
    """What one thread used so far: seconds in user and system mode, times it gave up and lost its core."""

    user: float
    system: float
    yields: int
    preemptions: int


def threads_of(server: Server) -> dict[int, ThreadCost]:
    """Every thread of a server, by its kernel id."""
    found = {}
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        user, system = _times(task / "stat")
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        switches = int(status["voluntary_ctxt_switches"]), int(status["nonvoluntary_ctxt_switches"])
        found[int(task.name)] = ThreadCost(user, system, *switches)
    return found


def _times(stat: Path) -> tuple[float, float]:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) / _TICK, int(fields[12]) / _TICK


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def child(arguments: list[str], env: Mapping[str, str], port: int, ready_path: str) -> Iterator[Server]:
    """Run a server until the block ends; the block begins when `ready_path` answers 200."""
    with tempfile.TemporaryFile() as log:
        begun = time.monotonic()
        process = subprocess.Popen(arguments, env={**os.environ, **env}, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            while not answers(url + ready_path):
                if process.poll() is not None or time.monotonic() > begun + START_SECONDS:
                    log.seek(0)
                    raise RuntimeError(f"{arguments} did not start:\n{log.read().decode()}")
                time.sleep(0.01)
            yield Server(url, process.pid, time.monotonic() - begun)
        finally:
            end(process, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a child, wait for it, and kill it if it stays."""
    process.send_signal(number)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def inference_server(*model_dirs: Path, **settings: str) -> Iterator[Server]:
    """Our server over these directories, without drain delay; settings as in `SCHEDULER_DISCIPLINE="fifo"`.

    Raises `RuntimeError` unless every model serves.
    """
    port = free_port()
    env = {
        "INFERENCE_SERVER_MODEL_DIRS": ":".join(map(str, model_dirs)),
        "INFERENCE_SERVER_ENDPOINTS_PORT": str(port),
        "INFERENCE_SERVER_DRAIN_DELAY_SECONDS": "0",
        **{f"INFERENCE_SERVER_{name}": value for name, value in settings.items()},
    }
    with child([sys.executable, "-m", "app", "serve"], env, port, "/v2/health/ready") as started:
        server = replace(started, token=settings.get("ENDPOINTS_API_TOKEN"))
        absent = {model["name"]: model["reason"] for model in server.models() if model["state"] != "READY"}
        if absent:
            raise RuntimeError(f"the server is ready, but not all models are: {absent}")
        yield server


@contextmanager
def bare_echo(answer: Path) -> Iterator[Server]:
    """A bare uvicorn application that reads each body and answers the bytes of a file."""
    port = free_port()
    arguments = [sys.executable, "-m", "uvicorn", "load_tests.echo:app", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--no-access-log", "--log-level", "warning"]
    with child(arguments, {"ECHO_ANSWER": str(answer)}, port, "/") as server:
        yield server
