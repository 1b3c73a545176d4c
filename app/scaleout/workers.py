"""The workers of one machine: a process for each device, with settings and a port of its own.

What one runs is `app.main.create_app`, as anywhere else; all that differs comes from its environment.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from app.backends.cuda import physical_ordinal
from app.backends.memory import usable_memory
from app.backends.threads import usable_cores
from app.settings import PREFIX, Settings, SettingsError

#: Seconds for which a worker that is told to end serves on, until the proxy has noticed.
DRAIN_SECONDS = 3.0

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Worker:
    """One of them. `label` tells it from others in metrics; `device` is the ordinal of its device, or `cpu`."""

    name: str
    label: str
    device: str
    port: int

    @property
    def gpu(self) -> str:
        """What metrics call its device, as the worker itself does: by the ordinal that it has where all are visible."""
        return self.device if self.device == "cpu" else physical_ordinal(int(self.device))

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"


def fleet(settings: Settings) -> tuple[Worker, ...]:
    """The workers that the settings ask for."""
    devices = settings.runtime.devices
    label = settings.worker_name or socket.gethostname()
    return tuple(
        Worker(f"w{number}", f"{label}-w{number}", device, port)
        for number, (device, port) in enumerate(zip(devices, _ports(settings, len(devices)), strict=True))
    )


def environment(settings: Settings, worker: Worker, token: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a worker finds in its environment. Raises `SettingsError` for a device that is not there."""
    shared = len(settings.runtime.devices)
    budget = settings.shutdown_timeout_seconds - settings.drain_delay_seconds
    given = {
        "RUNTIME_DEVICES": "",
        "WORKER_NAME": worker.label,
        "ENDPOINTS_HOST": "127.0.0.1",
        "ENDPOINTS_PORT": worker.port,
        "ENDPOINTS_SSL_CERTFILE": "",  # the proxy ends TLS
        "ENDPOINTS_SSL_KEYFILE": "",
        "ENDPOINTS_ADMIN_TOKEN": token,
        "ENDPOINTS_MAX_INFLIGHT_BYTES": settings.endpoints.max_inflight_bytes or usable_memory() // 4 // shared,
        "DRAIN_DELAY_SECONDS": DRAIN_SECONDS,
        "SHUTDOWN_TIMEOUT_SECONDS": max(budget - 1.0, DRAIN_SECONDS + 1.0),
    }
    own: dict[str, str] = {}
    if worker.device == "cpu":
        cores = settings.runtime.intra_op_threads or max(1, usable_cores() // shared)
        given |= {"RUNTIME_BACKEND": "cpu", "RUNTIME_INTRA_OP_THREADS": cores}
    else:
        own[_VISIBLE] = _visible(worker.device, inherited.get(_VISIBLE))
        given |= {"RUNTIME_DEVICE_ORDINAL": 0}
    return {**inherited, **{f"{PREFIX}{name}": str(value) for name, value in given.items()}, **own}


def _visible(ordinal: str, visible: str | None) -> str:
    """The device that one ordinal stands for, where not all devices are visible."""
    if visible is None:
        return ordinal
    devices = [part.strip() for part in visible.split(",") if part.strip()]
    if int(ordinal) >= len(devices):
        raise SettingsError(
            f"{PREFIX}RUNTIME_DEVICES: device {ordinal} is not among the {len(devices)} of {_VISIBLE}={visible}"
        )
    return devices[int(ordinal)]


def _ports(settings: Settings, count: int) -> list[int]:
    """Ports of the workers: a row of them, or free ones."""
    base, public = settings.cluster.base_port, settings.endpoints.port
    if base == 0 or (base is None and public == 0):
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [int(probe.getsockname()[1]) for probe in probes]
        for probe in probes:
            probe.close()
        return ports
    first = public + 1 if base is None else base
    if first + count > 65536 or first <= public < first + count:
        raise SettingsError(f"{PREFIX}CLUSTER_BASE_PORT={base}: {count} ports from {first} on are not free for workers")
    return list(range(first, first + count))


def log_line(worker: str, line: str) -> str:
    """A line of a worker's log, so that it tells whose it is: in text before it, in JSON within."""
    if re.match(r'\{"', line):
        return f'{{"from": "{worker}", {line[1:]}'
    return f"[{worker}] {line}"
