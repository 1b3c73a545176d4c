"""Starts servers in child processes, drives them with wrk, and reads what they cost from the kernel's accounting."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """A running child process that answers on `url`."""

    url: str
    pid: int

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rsplit(":", 1)[1])

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figures:
    """What one wrk run saw: `p50` and `p99` in seconds, `cpu` server seconds per request."""

    requests: int
    rate: float
    p50: float
    p99: float
    errors: int
    cpu: float


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def child(arguments: list[str], env: Mapping[str, str], port: int, ready_path: str) -> Iterator[Server]:
    """Run a server until the block ends; the block begins when `ready_path` answers 200."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(arguments, env={**os.environ, **env}, stdout=log, stderr=log)
        server = Server(f"http://127.0.0.1:{port}", process.pid)
        try:
            limit = time.monotonic() + START_SECONDS
            while not answers(server.url + ready_path):
                if process.poll() is not None or time.monotonic() > limit:
                    log.seek(0)
                    raise RuntimeError(f"{arguments} did not start:\n{log.read().decode()}")
                time.sleep(0.05)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
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
def inference_server(bundles: Path, **settings: str) -> Iterator[Server]:
    """Our server over `bundles`, without drain delay; settings as in `SCHEDULER_DISCIPLINE="fifo"`."""
    port = free_port()
    env = {
        "INFERENCE_SERVER_MODEL_DIRS": str(bundles),
        "INFERENCE_SERVER_ENDPOINTS_PORT": str(port),
        "INFERENCE_SERVER_DRAIN_DELAY_SECONDS": "0",
        **{f"INFERENCE_SERVER_{name}": value for name, value in settings.items()},
    }
    with child([sys.executable, "-m", "app", "serve"], env, port, "/v2/health/ready") as server:
        yield server


@contextmanager
def bare_echo(answer: Path) -> Iterator[Server]:
    """A bare uvicorn application that reads each body and answers the bytes of a file."""
    port = free_port()
    arguments = [sys.executable, "-m", "uvicorn", "load_tests.echo:app", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--no-access-log", "--log-level", "warning"]
    with child(arguments, {"ECHO_ANSWER": str(answer)}, port, "/") as server:
        yield server


def wrk(server: Server, path: str, body: Path, head_length: int | None, connections: int, seconds: float) -> Figures:
    """Drive one server with wrk: the same POST over and over, on kept-alive connections."""
    if shutil.which("wrk") is None:
        raise RuntimeError("wrk is not installed (Debian: apt-get install wrk)")
    header = "" if head_length is None else f'wrk.headers["Inference-Header-Content-Length"] = "{head_length}"\n'
    script = (
        f'local f = io.open("{body}", "rb")\nwrk.method = "POST"\nwrk.body = f:read("*all")\n{header}'
        'wrk.headers["Content-Type"] = "application/octet-stream"\n'
        "done = function(s, l, r)\n"
        "  local e = s.errors\n"
        '  io.write(string.format("FIGURES {\\"requests\\": %d, \\"us\\": %d, \\"p50\\": %d, \\"p99\\": %d, '
        '\\"errors\\": %d}\\n", s.requests, s.duration, l:percentile(50), l:percentile(99), '
        "e.connect + e.read + e.write + e.status + e.timeout))\nend\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        before = server.cpu_seconds()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", file.name, server.url + path]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cpu = server.cpu_seconds() - before
    match = re.search(r"FIGURES (\{.*\})", output)
    if match is None:
        raise RuntimeError(f"wrk printed no figures:\n{output}")
    found = json.loads(match.group(1))
    return Figures(
        found["requests"],
        found["requests"] / (found["us"] / 1e6),
        found["p50"] / 1e6,
        found["p99"] / 1e6,
        found["errors"],
        cpu / max(found["requests"], 1),
    )
