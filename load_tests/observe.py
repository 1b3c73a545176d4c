"""What a run costs the server and the machine: the kernel's accounting, and the server's own counters."""

import urllib.error
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from load_tests.counters import Counted, counted
from load_tests.processes import Server, ThreadCost, cpu_of, family, threads_of

#: Between two readings of the memory: the kernel walks all mappings for it.
SAMPLE_SECONDS = 1.0


@dataclass(frozen=True)
class Observed:
    """One run as the server's side saw it; None for what could not be read.

    `cpu_seconds` of the server and its children, `busiest` the part of a core that its busiest thread had, and
    `is_loop` whether that is its main thread. `device` and `machine` are the parts of the time that the device and the
    cores were busy. `samples` has, once a second, (seconds into the run, RSS and PSS in bytes, CPU seconds so far).
    """

    seconds: float
    cpu_seconds: float | None
    busiest: float | None
    is_loop: bool
    device: float | None
    machine: float
    samples: Sequence[tuple[float, int, int, float]]
    models: dict[str, Counted]


@dataclass
class _Reading:
    at: float
    cpu: float | None
    threads: dict[int, ThreadCost]
    device: float | None
    machine: tuple[int, int]
    models: dict[str, Counted] = field(default_factory=dict)


class Observer:
    """Watches one server during one run: `begin`, `tick` often, `end`. A pid of 0 is a server somewhere else."""

    def __init__(self, server: Server, models: Sequence[str]) -> None:
        self._server = server
        self._models = models
        self._samples: list[tuple[float, int, int, float]] = []
        self._before = self._read()

    def begin(self) -> None:
        """The run begins now."""
        self._before = self._read()

    def tick(self, seconds: float) -> None:
        """So many seconds into the run: look at the memory when it is time to."""
        pid = self._server.pid
        if pid and (not self._samples or seconds >= self._samples[-1][0] + SAMPLE_SECONDS):
            self._samples.append((seconds, *memory(pid), cpu_of([pid])))

    def end(self) -> Observed:
        """The run is over."""
        before, after = self._before, self._read()
        if self._samples:
            self._samples.append((after.at - before.at, *memory(self._server.pid), cpu_of([self._server.pid])))
        seconds = after.at - before.at
        spent = {
            task: now.user + now.system - (was.user + was.system if (was := before.threads.get(task)) else 0.0)
            for task, now in after.threads.items()
        }
        busiest = max(spent, key=spent.__getitem__, default=0)
        total, idle = (b - a for a, b in zip(before.machine, after.machine, strict=True))
        return Observed(
            seconds,
            None if before.cpu is None or after.cpu is None else after.cpu - before.cpu,
            spent[busiest] / seconds if spent else None,
            busiest == self._server.pid,
            None if before.device is None or after.device is None else (after.device - before.device) / seconds,
            1.0 - idle / max(total, 1),
            tuple(self._samples),
            {name: after.models[name] - before.models[name] for name in after.models.keys() & before.models.keys()},
        )

    def _read(self) -> _Reading:
        server, pid = self._server, self._server.pid
        models: dict[str, Counted] = {}
        device = None
        try:
            device = server.node()["device_busy_seconds"]
            models = {name: counted(server, name) for name in self._models}
        except (urllib.error.URLError, KeyError, ValueError):  # it is no server of ours
            models = {}
        cpu = cpu_of(family(pid)) if pid else None
        return _Reading(monotonic(), cpu, threads_of(server) if pid else {}, device, _machine(), models)


def memory(pid: int) -> tuple[int, int]:
    """RSS and PSS of a process, in bytes."""
    fields = Counter[str]()
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name] += int(value) * 1024
    return fields["Rss:"], fields["Pss:"]


def _machine() -> tuple[int, int]:
    """Ticks of all cores since the machine started, and how many of them were idle."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]
