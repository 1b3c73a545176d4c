"""Drives a server with wrk: the same POST over and over on kept-alive connections, each with one request at a time."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from load_tests.processes import Server, end
from load_tests.wire import InferCall

#: How long a load in the background may go on at most.
LONGEST_SECONDS = 600

_DONE = """
done = function(s, l, r)
  local e = s.errors
  io.write(string.format(
    "FIGURES {\\"requests\\": %d, \\"us\\": %d, \\"p50\\": %d, \\"p99\\": %d, \\"errors\\": %d}\\n",
    s.requests, s.duration, l:percentile(50), l:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass(frozen=True)
class Figures:
    """What one run saw. `seconds` is its length, `rate` requests a second, `p50` and `p99` seconds.

    `user` and `system` are server seconds per request.
    """

    requests: int
    seconds: float
    rate: float
    p50: float
    p99: float
    errors: int
    user: float
    system: float

    @property
    def cpu(self) -> float:
        """Server seconds per request."""
        return self.user + self.system


def drive(server: Server, call: InferCall, connections: int, seconds: int) -> Figures:
    """Run wrk for so long. Raises `RuntimeError` when it is missing or says nothing."""
    with _command(server, call, connections, seconds) as command:
        before = server.cpu()
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        after = server.cpu()
    match = re.search(r"FIGURES (\{.*\})", output)
    if match is None:
        raise RuntimeError(f"wrk printed no figures:\n{output}")
    found = json.loads(match.group(1))
    requests, length = found["requests"], found["us"] / 1e6
    user, system = ((b - a) / max(requests, 1) for a, b in zip(before, after, strict=True))
    return Figures(
        requests, length, requests / length, found["p50"] / 1e6, found["p99"] / 1e6, found["errors"], user, system
    )


@contextmanager
def background(server: Server, call: InferCall, connections: int) -> Iterator[None]:
    """Keep a load on the server while the block runs."""
    with _command(server, call, connections, LONGEST_SECONDS) as command:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.5)  # every connection has its first request in flight
            if process.poll() is not None:
                raise RuntimeError(f"wrk ended at once with status {process.returncode}")
            yield
        finally:
            end(process, signal.SIGINT)


@contextmanager
def _command(server: Server, call: InferCall, connections: int, seconds: int) -> Iterator[list[str]]:
    if shutil.which("wrk") is None:
        raise RuntimeError("wrk is not installed (Debian: apt-get install wrk)")
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder, "body"), Path(folder, "request.lua")
        body.write_bytes(call.body)
        headers = "".join([f'wrk.headers["{name}"] = "{value}"\n' for name, value in call.headers.items()])
        script.write_text(
            f'local f = io.open("{body}", "rb")\nwrk.method = "POST"\nwrk.body = f:read("*all")\n{headers}{_DONE}'
        )
        length = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
        yield ["wrk", *length, "-s", str(script), server.url + call.path]
