"""A real server process on a real socket."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]

BUNDLES = ROOT / "bundles"


@dataclass
class ServerProcess:
    """The process, its address, and what it has logged so far."""

    process: subprocess.Popen[str]
    port: int
    log: list[str] = field(default_factory=list)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"http://{self.address}"

    def read_until(self, text):
        """Read the log up to the line that holds `text`."""
        for line in self.process.stderr or ():
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError(f"the server ended before it logged {text!r}:\n{''.join(self.log)}")

    def stop(self):
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.log.append(self.process.communicate(timeout=60)[1])
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        return self.process.returncode


def free_port():
    """A port that is free until a server takes it: each process of tests has its own to choose from.

    They are below those that the kernel gives to whoever asks for any, as clients and other tests do meanwhile.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in random.sample(range(20_000 + 1_000 * (process % 12), 21_000 + 1_000 * (process % 12)), 1_000):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


@contextmanager
def running(cache_dir, model_dirs=BUNDLES, until="started: ", **settings) -> Iterator[ServerProcess]:
    """A server over `model_dirs` that has logged `until`; settings as in `SCHEDULER_DISCIPLINE="fifo"`."""
    port = free_port()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("INFERENCE_SERVER_")},
        "INFERENCE_SERVER_MODEL_DIRS": str(model_dirs),
        "INFERENCE_SERVER_MODELS_INCLUDE": "*" if model_dirs != BUNDLES else "filetype,orientation,tabular",
        "INFERENCE_SERVER_CACHE_DIR": str(cache_dir),
        "INFERENCE_SERVER_ENDPOINTS_PORT": str(port),
        "INFERENCE_SERVER_DRAIN_DELAY_SECONDS": "0",
        **{f"INFERENCE_SERVER_{name}": str(value) for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "app", "serve"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        server = ServerProcess(process, port)
        try:
            server.read_until(until)
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """One compile cache for the whole run."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def server(cache_dir):
    """The example bundles, through the fast path."""
    with running(cache_dir) as process:
        yield process


@pytest.fixture(scope="session")
def asgi_server(cache_dir):
    """The example bundles, through ASGI alone."""
    with running(cache_dir, ENDPOINTS_FAST_PATH="false") as process:
        yield process


@pytest.fixture(params=["fast", "asgi"])
def either(request):
    """Both doors."""
    return request.getfixturevalue("server" if request.param == "fast" else "asgi_server")


@pytest.fixture
def http(either):
    """An HTTP client of either door."""
    with httpx.Client(base_url=either.url, timeout=60, trust_env=False) as client:
        yield client
