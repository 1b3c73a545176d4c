"""Serves a model on Ray, in a namespace where there is nothing else, and prints what clients and operators saw as JSON.

Run by the Python of the client's own environment, in namespaces of network and processes of its own: `drive.py FOLDER`.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import tritonclient.http as triton

T = TypeVar("T")

PORT, TOKEN, CLIENTS = 8000, "the admin token", 8

URL = f"http://127.0.0.1:{PORT}"

ROW = [0.5, -1.5]

OTHER_SETTINGS = {
    "INFERENCE_SERVER_SCHEDULER_DISCIPLINE": "fifo",
    "INFERENCE_SERVER_MODEL_CONTROL_MODE": "explicit",
    "INFERENCE_SERVER_STARTUP_MODELS": "floats",
    "INFERENCE_SERVER_MODELS_INCLUDE": "floats,several",
}

INFERENCE_SERVER = Path(sys.executable).with_name("inference-server")


def bring_loopback_up() -> None:
    """What `ip link set lo up` does."""
    up = struct.pack("16sh", b"lo", 1)  # IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS


def environment(folder: Path) -> dict[str, str]:
    """Nothing of Ray or of ours lies where another would find it."""
    (folder / "ray-token").write_text("0" * 64)
    proxy = {
        name: str(folder / file)
        for name, file in (
            ("CONFIG_FILE_LOC", "haproxy.cfg"), ("SOCKET_PATH", "admin.sock"), ("SERVER_STATE_BASE", ""),
            ("SERVER_STATE_FILE", "server-state"), ("METRICS_SOCKET_PATH", "metrics.sock"),
        )
    }  # fmt: skip
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("INFERENCE_SERVER_", "RAY_"))},
        **{f"RAY_SERVE_HAPROXY_{name}": value for name, value in proxy.items()},
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "ray-token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "INFERENCE_SERVER_MODEL_DIRS": str(folder / "bundles"),
        "INFERENCE_SERVER_MODELS_INCLUDE": "floats",
        "INFERENCE_SERVER_CACHE_DIR": str(folder / "cache"),
        "INFERENCE_SERVER_ENDPOINTS_PORT": str(PORT),
        "INFERENCE_SERVER_ENDPOINTS_ADMIN_TOKEN": TOKEN,
        "INFERENCE_SERVER_DRAIN_DELAY_SECONDS": "3",
    }


class Load:
    """Clients that ask and ask; `failures` is what was no right answer."""

    def __init__(self) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        tensor = {"name": "FP32", "datatype": "FP32", "shape": [1, 2], "data": ROW}
        with httpx.Client(base_url=URL, trust_env=False, timeout=30) as client:
            while not self._ended.is_set():
                try:
                    answer = client.post("/v2/models/floats/infer", json={"inputs": [tensor]})
                    if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != ROW:
                        self.failures.append(f"{answer.status_code} {answer.text:.200}")
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                self.answers += 1


def until(found: Callable[[], T | None], what: str, seconds: float = 180) -> T:
    """Ask until there is something to find; it."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.1)):
        try:
            if result := found():
                return result
        except (httpx.HTTPError, KeyError, TypeError, ValueError):  # it is not there yet
            pass
        pause.wait(0.1)
    raise TimeoutError(f"{what}: not in {seconds} s")


def get(path: str) -> Any:
    """What the server tells."""
    return httpx.get(URL + path, trust_env=False, timeout=30).json()


def command(path: str, body: Mapping[str, Any], token: str = TOKEN) -> tuple[int, Any]:
    """Status and answer of an admin command."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(URL + path, json=body, headers=headers, trust_env=False, timeout=30)
    return answer.status_code, answer.json() if answer.content else None


def replicas() -> dict[str, dict[str, Any]]:
    """Name → process id, answers and weight of the model, the discipline, and which models serve."""
    found = {}
    for worker in get("/status")["workers"]:
        serving = {model["name"]: model["serving"] for model in worker["status"]["models"] if model["serving"]}
        found[worker["name"]] = {
            "pid": worker["pid"],
            "ok": serving["floats"]["ok"],
            "weight": serving["floats"]["weight"],
            "discipline": worker["status"]["discipline"],
            "models": sorted(serving),
        }
    return found


def triton_answers() -> dict[str, Any]:
    """What the official client makes of it, and how many of its requests each replica answered."""
    client = triton.InferenceServerClient(f"127.0.0.1:{PORT}")
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensor = triton.InferInput("FP32", [3, 2], "FP32")
    tensor.set_data_from_numpy(rows)
    right: list[bool] = []

    def everyone_answers() -> bool:
        right.extend([np.array_equal(client.infer("floats", [tensor]).as_numpy("FP32_out"), rows) for _ in range(20)])
        return all(each["ok"] for each in replicas().values())

    until(everyone_answers, "answers of every replica")  # the proxy may have found one earlier than the other
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model ready": client.is_model_ready("floats"),
        "right": right,
        "answered": [each["ok"] for each in replicas().values()],
        "statistics": client.get_inference_statistics("floats")["model_stats"][0]["inference_stats"]["success"][
            "count"
        ],
    }


def commands() -> dict[str, Any]:
    """Commands of operators, and what all replicas say of them."""
    found: dict[str, Any] = {
        "set_policy": command("/admin/set_policy", {"model": "floats", "weight": 3}),
        "absent": command("/admin/set_policy", {"model": "nobody", "weight": 3}),
        "wrong token": command("/admin/set_policy", {"model": "floats", "weight": 7}, "no token"),
        "weights": [each["weight"] for each in replicas().values()],
    }
    metrics = httpx.get(f"{URL}/metrics", timeout=60, trust_env=False).text
    found["metrics"] = [name for name in replicas() if f'worker="{name}"' in metrics]
    return found


def killed() -> dict[str, Any]:
    """A replica that is killed under load, and the one that takes its place."""
    before = replicas()
    victim = next(iter(before))
    with Load() as load:
        until(lambda: load.answers > 200, "answers")
        os.kill(before[victim]["pid"], signal.SIGKILL)

        def back() -> dict[str, Any] | None:
            found = replicas()
            new = found.keys() - before.keys()
            return found if len(found) == 2 and new and found[new.pop()]["ok"] > 0 else None

        after = until(back, "another replica answers")
        lost, count = len(load.failures), load.answers
        until(lambda: load.answers > count + 200, "more answers")
    return {
        "lost": load.failures[:lost],
        "lost afterwards": load.failures[lost:],
        "answers": load.answers,
        "weights": [each["weight"] for each in after.values()],
    }


def redeployed(env: Mapping[str, str]) -> dict[str, Any]:
    """Other settings, deployed under load from another process on the same cluster."""
    before = replicas()
    with Load() as load:
        until(lambda: load.answers > 200, "answers")
        told = subprocess.run(
            [INFERENCE_SERVER, "cluster", "deploy", "--address", "auto", "--replicas", "2", "--max-replicas", "3"],
            env={**env, **OTHER_SETTINGS}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        until(lambda: len(replicas()) == 2 and not replicas().keys() & before.keys(), "only new replicas")
        count = load.answers
        until(lambda: load.answers > count + 200, "more answers")
    return {
        "told": [told.returncode, told.stdout, told.stderr[-2000:]],
        "lost": load.failures,
        "answers": load.answers,
        "replicas": [[each["discipline"], each["weight"]] for each in replicas().values()],
        "load": command("/v2/repository/models/several/load", {})[0],
        "models": [each["models"] for each in replicas().values()],
    }


def drive(folder: Path) -> dict[str, Any]:
    """Everything."""
    bring_loopback_up()
    env = environment(folder)
    out = folder / "out"
    begun = time.monotonic()
    with out.open("w") as stdout, (folder / "err").open("w") as stderr:
        server = subprocess.Popen(
            [INFERENCE_SERVER, "cluster", "deploy", "--replicas", "2"], env=env, stdout=stdout, stderr=stderr
        )
    until(lambda: "application" in out.read_text() or server.poll() is not None, "the application is there", 300)
    seen: dict[str, Any] = {"deployed": out.read_text()}
    for name, step in (
        ("triton", triton_answers), ("commands", commands), ("killed", killed), ("redeployed", lambda: redeployed(env)),
    ):  # fmt: skip
        print(f"{time.monotonic() - begun:.0f} s: {name}", file=sys.stderr)
        seen[name] = step()
    server.terminate()
    seen["exit"] = server.wait(120)
    print(f"{time.monotonic() - begun:.0f} s: ended", file=sys.stderr)
    return seen


if __name__ == "__main__":
    print(json.dumps(drive(Path(sys.argv[1]))))
