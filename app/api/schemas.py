"""The V2 bodies as the OpenAPI document tells them, and as answers are checked against them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
    "BYTES",
]  # fmt: skip

Parameters = dict[str, str | int | float | bool]


class Described(BaseModel):
    """Base of all: what stands below an attribute describes it."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Error(Described):
    """Body of every answer that is not 2xx, but for health and readiness."""

    error: str
    """What is wrong, for people: the culprit, what was expected and what was given."""
    code: str
    """The reason, for programs; stable."""


class Tensor(Described):
    """A tensor as a model declares it; -1 marks variable extents, the batch axis included."""

    name: str
    datatype: Datatype
    shape: list[int]


class Root(Described):
    """What this is, and where to look."""

    name: str
    version: str
    console: str
    docs: str
    status: str
    v2: str


class ServerMetadata(Described):
    """The server and the extensions of the protocol that it implements."""

    name: str
    version: str
    extensions: list[str]


class Live(Described):
    """Whether the process should go on living."""

    live: bool


class Ready(Described):
    """Whether requests should be sent here."""

    ready: bool


class ModelReady(Described):
    """Whether a model serves."""

    name: str
    ready: bool


class ModelNames(Described):
    """Names of the models."""

    models: list[str]


class ModelMetadata(Described):
    """A model and its tensors as clients see them."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    properties: dict[str, str]


class IndexEntry(Described):
    """A model that is known; `version` only where one is loaded."""

    name: str
    version: str | None = None
    state: str
    reason: str


class ConfiguredTensor(Described):
    """A tensor as Triton's configuration names it."""

    name: str
    data_type: str
    dims: list[int]


class ModelConfiguration(Described):
    """As much of Triton's model configuration as says something here."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any]
    max_batch_size: int
    input: list[ConfiguredTensor]
    output: list[ConfiguredTensor]
    parameters: dict[str, Any]
    dynamic_batching: dict[str, Any] | None = None


class Duration(Described):
    """How often, and how long in all."""

    count: int
    ns: int


class BatchStatistics(Described):
    """Executions of one number of rows."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class MemoryUsage(Described):
    """Weights in memory."""

    type: str
    id: int
    byte_size: int


class ModelStatistics(Described):
    """The statistics extension, of one model."""

    name: str
    version: str
    last_inference: int
    """Milliseconds since 1970; 0 for never."""
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Duration]
    response_stats: dict[str, Any]
    batch_stats: list[BatchStatistics]
    memory_usage: list[MemoryUsage]


class Statistics(Described):
    """The statistics extension."""

    model_stats: list[ModelStatistics]


class LogSettings(Described):
    """The settings in force."""

    log_file: str
    log_error: bool
    log_warning: bool
    log_info: bool
    log_verbose_level: int
    log_format: str


class InferenceInput(Described):
    """An input; either `data`, or the parameter `binary_data_size` and its bytes behind the JSON."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: Datatype
    parameters: Parameters = {}
    data: list[Any] | None = None
    """Flat in row-major order, or nested exactly as `shape`. NaN and infinities are the strings "NaN", "Infinity" and
    "-Infinity"."""


class WantedOutput(Described):
    """An output that is asked for; parameters `binary_data` and `classification`."""

    name: str
    parameters: Parameters = {}


class InferenceRequest(Described):
    """A V2 inference request. Parameters: `timeout` (microseconds), `priority`, `binary_data_output`, `explain`, and
    whatever the hooks of the model understand."""

    id: str = ""
    parameters: Parameters = {}
    inputs: list[InferenceInput]
    outputs: list[WantedOutput] = []
    """All of them where this is absent or empty."""


class InferenceOutput(Described):
    """An output: `data`, flat in row-major order, or the parameter `binary_data_size` and its bytes behind the JSON."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferenceResponse(Described):
    """A V2 inference response."""

    id: str | None = None
    model_name: str
    model_version: str
    parameters: dict[str, Any] | None = None
    outputs: list[InferenceOutput]
