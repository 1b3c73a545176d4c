"""What a gateway and an operator read: the node and every model, in one frozen snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """On which axis (1-based, in wire order) of which client input a gateway can count rows."""

    input: str
    axis: int


@dataclass(frozen=True, slots=True)
class Serving:
    """Counters and averages of a model that serves. Seconds and bytes; counters run since the model was loaded.

    `batch_safety` is the verdict on its batches, empty where it has none to judge; `batch_deviation` by how much of
    its range an answer depends on the rows beside it, None for no figure; `batching_reason` why requests do not merge,
    or what is to be known where they do.
    """

    version: str
    digest: str
    policy_digest: str
    weight: float
    queue_depth: int
    dispatches: int
    requests: int
    rows: int
    padded_rows: int
    compute_seconds: float
    recent_seconds: float
    share_target: float
    share_actual: float
    wait_p50: float
    wait_p99: float
    reserve_seconds: float
    batch_rows: Mapping[int, int]
    batch_seconds: Mapping[int, float]
    batch_sizes: Mapping[int, int]
    gap_buckets: tuple[int, ...]
    gap_seconds: float
    max_batch_size: int | None
    costs: Mapping[str, Mapping[int, float]]
    batchable: bool
    batch_safety: str
    batch_deviation: float | None
    batching_reason: str
    batch_axis: BatchAxis | None
    resident: bool
    residency_floor: str
    provider: str
    graphs: Mapping[str, Sequence[int]]
    weight_bytes: int
    weight_loads: int
    weight_evicts: int
    weight_load_seconds: float
    accepted: int
    diverted: int
    ok: int
    failed: int
    dropped: Mapping[str, int]
    in_flight: int
    latency_buckets: tuple[int, ...]
    latency_sum: float
    ok_seconds: float
    answered_at: float | None
    stage_buckets: tuple[tuple[int, ...], ...]
    stage_sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model; `serving` is None while nothing can be served under the name."""

    name: str
    state: str
    reason: str
    serving: Serving | None
    parts: tuple["ModelStatus", ...] = ()
    """Of a meta model: the models it calls, which are served by themselves only where their manifests say so."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The node at one instant. `device` is the ordinal of the device, or "cpu".

    `compiled_code` says whether the code of every request is: see `app.wheel`.
    """

    backend: str
    device: str
    compiled_code: bool
    discipline: str
    control_mode: str
    residency_mode: str
    alive: bool
    draining: bool
    queue_depth: int
    hook_pool_depth: int
    share_wait_seconds_max: float
    device_busy_seconds: float
    device_memory_in_use_bytes: int
    device_memory_limit_bytes: int
    resident_weight_bytes: int
    pinned_weight_bytes: int
    scratch_bytes: int
    weight_pool_bytes: int
    weight_on_demand_bytes: int
    weight_hit_rate: float | None
    compactions: int
    problems: Mapping[str, str]
    models: tuple[ModelStatus, ...]
