"""From what clients and observer saw to the figures of one run."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from load_tests.client import ANSWERED, CLOSED, DUE, OK, OUTCOME, SENT, UNANSWERED, WHICH, Seen
from load_tests.observe import Observed
from load_tests.workload import Workload

#: Outcomes that are errors, whoever is to blame; other codes are refusals, or deadlines that passed.
_REFUSALS = frozenset({"queue_full", "too_many_requests", "429"})
_MISSES = frozenset({"deadline_exceeded", "deadline_infeasible", "infeasible_dispatch", "504"})

#: A client process that computes for more of the time than this may be what bounds the rate.
BUSY_CLIENT = 0.8

#: A part of a core, or of the device's time, from which on it is what bounds the rate.
BUSY = 0.85

#: Requests may leave so long after they were due (99th percentile), or a tenth of the median latency.
LAG_MS = 1.0

_BINS = 40

Quantiles = dict[str, float]


@dataclass(frozen=True)
class Run:
    """Figures of one run, as they stand in the JSON file. Times in milliseconds, memory in bytes.

    Rates are those of successful answers that came within the run's time; latencies those of all of them, from when
    each was due. A miss is an answer after the deadline, or a 504. Stages are those of Server-Timing.
    `others_cores` are the cores that neither the server nor the clients used, but somebody did.
    """

    seconds: float
    due: int
    ok: int
    offered_per_s: float
    requests_per_s: float
    rows_per_s: float
    in_time_per_s: float
    latency_ms: Quantiles
    latency_by_call_ms: dict[str, Quantiles]
    late: int
    refused_late: int
    miss_rate: float
    rejected: dict[str, int]
    error_rate: float
    stages_ms: dict[str, Quantiles]
    batch_sizes: dict[str, dict[int, int]]
    rows_per_execution: float | None
    device_busy: float | None
    machine_busy: float
    others_cores: float | None
    server_cpu_us: float | None
    server_busiest_thread: float | None
    rss_max: int | None
    pss_max: int | None
    client: dict[str, Any]
    bounded_by: str
    over_time: list[dict[str, float]]
    latency_curve: list[tuple[float, float]]


def quantiles(values: NDArray[np.float64]) -> Quantiles:
    """Median, tails and mean; nothing of nothing."""
    if not len(values):
        return {}
    p50, p95, p99, p999 = np.percentile(values, [50, 95, 99, 99.9])
    found = {"p50": p50, "p95": p95, "p99": p99, "p99.9": p999, "max": values.max(), "mean": values.mean()}
    return {name: round(float(value), 4) for name, value in found.items()}


def outcomes(seen: Sequence[Seen]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The records of all processes, with one numbering of their outcomes."""
    names = tuple(dict.fromkeys(name for each in seen for name in each.outcomes))
    tables = []
    for each in seen:
        table = each.records.copy()
        number = np.array([names.index(name) for name in each.outcomes])
        table[:, OUTCOME] = number[table[:, OUTCOME].astype(np.int64)]
        tables.append(table)
    return np.concatenate(tables), names


def figures(workload: Workload, seconds: float, seen: Sequence[Seen], observed: Observed) -> Run:
    """Put one run together; `seconds` is how long requests were due."""
    records, names = outcomes(seen)
    which, outcome = records[:, WHICH].astype(np.int64), records[:, OUTCOME].astype(np.int64)
    ok = outcome == names.index(OK)
    latency = (records[:, ANSWERED] - records[:, DUE]) * 1e3
    deadlines = np.array([call.deadline_ms or np.inf for call in workload.calls])[which]
    rows = np.array([call.rows for call in workload.calls])[which]
    within = ok & (records[:, ANSWERED] <= seconds)
    in_time = ok & (latency <= deadlines)
    counts = Counter({name: int((outcome == place).sum()) for place, name in enumerate(names)})
    refused_late = sum(counts[code] for code in _MISSES)
    errors = sum(count for name, count in counts.items() if name not in {OK, *_REFUSALS, *_MISSES})
    stages = _stages([timing for each in seen for timing in each.timings])
    lag = (records[:, SENT] - records[:, DUE]) * 1e3
    client = _client(workload, seen, quantiles(lag), quantiles(latency[ok]))
    executions = [each for each in observed.models.values() if each.dispatches]
    dispatches = sum(each.dispatches for each in executions)
    total = max(len(records), 1)
    labels = _labels(workload)
    return Run(
        seconds=seconds,
        due=len(records),
        ok=int(ok.sum()),
        offered_per_s=len(records) / seconds,
        requests_per_s=float(within.sum()) / seconds,
        rows_per_s=float(rows[within].sum()) / seconds,
        in_time_per_s=float((within & in_time).sum()) / seconds,
        latency_ms=quantiles(latency[ok]),
        latency_by_call_ms={label: quantiles(latency[ok & (which == place)]) for place, label in enumerate(labels)},
        late=int((ok & ~in_time).sum()),
        refused_late=refused_late,
        miss_rate=(int((ok & ~in_time).sum()) + refused_late) / total,
        rejected={name: count for name, count in sorted(counts.items()) if name != OK and count},
        error_rate=errors / total,
        stages_ms=stages,
        batch_sizes={name: dict(sorted(each.batch_sizes.items())) for name, each in observed.models.items()},
        rows_per_execution=sum(each.rows for each in executions) / dispatches if dispatches else None,
        device_busy=observed.device,
        machine_busy=observed.machine,
        others_cores=_others(seen, observed),
        server_cpu_us=None if observed.cpu_seconds is None else observed.cpu_seconds * 1e6 / total,
        server_busiest_thread=observed.busiest,
        rss_max=max((rss for _, rss, _, _ in observed.samples), default=None),
        pss_max=max((pss for _, _, pss, _ in observed.samples), default=None),
        client=client,
        bounded_by=_bound(observed, client),
        over_time=_over_time(records, ok, latency, seconds),
        latency_curve=_curve(latency[ok]),
    )


def as_json(run: Run) -> dict[str, Any]:
    """For the file."""
    return asdict(run)


def _labels(workload: Workload) -> list[str]:
    labels = [f"{call.model}, {call.rows} rows" if call.rows > 1 else call.model for call in workload.calls]
    return [f"{label} ({place})" if labels.count(label) > 1 else label for place, label in enumerate(labels)]


def _stages(timings: Sequence[bytes]) -> dict[str, Quantiles]:
    """Quantiles of every stage, from values of the Server-Timing header."""
    found: dict[str, list[float]] = {}
    for timing in timings:
        for each in timing.decode("latin-1").split(","):
            name, _, value = each.strip().partition(";dur=")
            if value:
                found.setdefault(name, []).append(float(value))
    return {name: quantiles(np.array(values)) for name, values in found.items()}


def _client(workload: Workload, seen: Sequence[Seen], lag: Quantiles, latency: Quantiles) -> dict[str, Any]:
    """What the clients cost, and whether they may be what was measured."""
    busiest = max(each.cpu_seconds / each.wall_seconds for each in seen)
    queued, late = sum(each.queued for each in seen), lag.get("p99", 0.0)
    complaints = []
    if busiest > BUSY_CLIENT:
        complaints.append(f"a client process computed {busiest:.0%} of the time")
    if late > max(LAG_MS, latency.get("p50", 0.0) / 10):
        reason = f", {queued} times for want of a connection" if queued else ""
        complaints.append(f"requests left {late:.1f} ms after they were due (p99){reason}")
    fine = f"busiest process {busiest:.0%} of a core, requests left {late:.2f} ms after they were due (p99)"
    return {
        "processes": len(seen),
        "connections": workload.arrivals.most,
        "busiest": busiest,
        "lag_ms": lag,
        "queued_for_a_connection": queued,
        "may_bound": bool(complaints),
        "known_by": "; ".join(complaints) or fine,
    }


def _others(seen: Sequence[Seen], observed: Observed) -> float | None:
    """Cores that other processes had: figures that were taken beside them are no figures of the server's."""
    if observed.cpu_seconds is None:
        return None
    used = observed.machine * (os.cpu_count() or 1) * observed.seconds
    ours = observed.cpu_seconds + sum(each.cpu_seconds for each in seen)
    return round(max(0.0, used - ours) / observed.seconds, 3)


def _bound(observed: Observed, client: Mapping[str, Any]) -> str:
    """What had nothing left to give."""
    found = []
    if observed.device is not None and observed.device >= BUSY:
        found.append(f"the device ({observed.device:.0%} busy)")
    if observed.busiest is not None and observed.busiest >= BUSY:
        thread = "event loop" if observed.is_loop else "a thread"
        found.append(f"the server's {thread} ({observed.busiest:.0%} of a core)")
    if client["busiest"] > BUSY_CLIENT:
        found.append(f"the client ({client['busiest']:.0%} of a core)")
    if observed.machine >= 0.95:
        found.append(f"the cores of the machine ({observed.machine:.0%} busy)")
    return ", ".join(found) or "nothing was used up: the arrivals, or waiting in turn"


def _over_time(
    records: NDArray[np.float64], ok: NDArray[np.bool_], latency: NDArray[np.float64], seconds: float
) -> list[dict[str, float]]:
    """Rates and tails in equal parts of the run."""
    edges = np.linspace(0.0, seconds, _BINS + 1)
    due = np.histogram(records[:, DUE], edges)[0] / (seconds / _BINS)
    part = np.digitize(records[:, ANSWERED], edges) - 1
    found = []
    for place in range(_BINS):
        here = latency[ok & (part == place)]
        p50, p99 = np.percentile(here, [50, 99]) if len(here) else (np.nan, np.nan)
        found.append(
            {
                "at": float(edges[place]),
                "due_per_s": float(due[place]),
                "ok_per_s": len(here) / (seconds / _BINS),
                **({"p50_ms": float(p50), "p99_ms": float(p99)} if len(here) else {}),
            }
        )
    return found


def _curve(latency: NDArray[np.float64]) -> list[tuple[float, float]]:
    """(part of the answers, milliseconds), finer towards the tail."""
    if not len(latency):
        return []
    parts = 1.0 - np.logspace(0, -4, 60)
    values = np.quantile(latency, parts)
    return [(round(float(part), 6), round(float(value), 4)) for part, value in zip(parts, values, strict=True)]


def failed(run: Run) -> int:
    """Requests that had no answer at all."""
    return run.rejected.get(UNANSWERED, 0) + run.rejected.get(CLOSED, 0)
