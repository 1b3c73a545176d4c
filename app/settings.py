"""The settings of the process: defaults, then the node file, then the environment; the composition root reads them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import pydantic_settings
import yaml
from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from app.domain.config import ClusterConfig, EndpointsConfig, RuntimeConfig, SchedulerConfig

PREFIX = "INFERENCE_SERVER_"
NODE_FILE = PREFIX + "NODE_FILE"

#: The one variable whose value is JSON.
JSON_VARIABLE = PREFIX + "SCHEDULER_MODELS"


class Effective(NamedTuple):
    """A setting in force: its value as JSON has it, of a secret only whether there is one, and the source that won."""

    value: Any
    source: Literal["default", "node file", "environment"]


class SettingsError(ValueError):
    """A setting that stops the start; the message names it, its value and what is allowed."""


def _split(separator: str) -> BeforeValidator:
    def split(value: Any) -> Any:
        parts = (part.strip() for part in value.split(separator)) if isinstance(value, str) else None
        return value if parts is None else tuple(part for part in parts if part)

    return BeforeValidator(split)


Names = Annotated[tuple[str, ...], NoDecode, _split(",")]
Paths = Annotated[tuple[Path, ...], NoDecode, _split(":")]


def default_cache_dir() -> Path:
    """The user's cache directory, as the XDG base directory specification has it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inference-server"


class Settings(BaseSettings):
    """Every setting; nested sections are the frozen parts that the layers below receive."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    model_dirs: Paths = (Path("bundles"),)
    """Directories of bundles, separated by colons."""
    models_include: Names = ("*",)
    """Models to serve, separated by commas; `*` for all."""
    cache_dir: Path = Field(default_factory=default_cache_dir)
    """Where compiled bundles and the made admin token are kept."""
    model_control_mode: Literal["dynamic", "static", "explicit"] = "dynamic"
    """Who loads models: `dynamic` follows the directories, `static` loads once, `explicit` obeys the repository API."""
    startup_models: Annotated[tuple[str, ...] | None, NoDecode, _split(",")] = None
    """Models loaded at start; by default all, none in `explicit` mode."""
    model_poll_seconds: Annotated[float, Field(gt=0)] = 15.0
    """How often `dynamic` looks at the directories."""
    required_models: Names = ()
    """Models without which the server is not ready."""
    meta_concurrency: Annotated[int, Field(ge=1)] = 2
    """Meta models in flight at once."""
    hook_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads for hooks and large bodies; by default the cores of this process, at most 4."""
    switch_interval_us: Annotated[int, Field(ge=1)] = 50
    """How soon a busy Python thread gives way to the others, in microseconds."""
    drain_delay_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Normal service after SIGTERM, while load balancers look away."""
    shutdown_timeout_seconds: Annotated[float, Field(gt=0)] = 25.0
    """When what still runs after SIGTERM is given up; the delay included."""
    worker_name: str | None = None
    """The `worker` label of the metrics; by default the host name."""
    log_format: Literal["text", "json"] = "text"
    """Form of the log lines."""
    slow_request_ms: Annotated[float, Field(ge=0)] = 0.0
    """Log requests that take longer; 0 for never."""
    record_dir: Path | None = None
    """Where arrivals are recorded for the simulator; nowhere by default."""
    record_max_bytes: Annotated[int, Field(ge=1_048_576)] = 1_073_741_824
    """Most bytes of recorded arrivals that are kept; the oldest files go."""
    runtime: RuntimeConfig = RuntimeConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    endpoints: EndpointsConfig = EndpointsConfig()
    cluster: ClusterConfig = ClusterConfig()

    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)  # by the node file

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over what `load` passes in from the node file."""
        return env_settings, init_settings

    @classmethod
    def load(cls) -> "Settings":
        """Read node file and environment. Raises `SettingsError`."""
        _refuse_unknown(set(variables(cls)))
        file = os.environ.get(NODE_FILE)
        try:
            given = _node_file(file)
            settings = cls(**given)
        except ValidationError as error:
            raise SettingsError(explain(error)) from error
        except pydantic_settings.SettingsError as error:
            value = os.environ.get(JSON_VARIABLE)
            raise SettingsError(f"{JSON_VARIABLE}={value!r}: no JSON object by model name: {error.__cause__}") from None
        settings._given = given
        return settings

    def of_one_device(self) -> "Settings":
        """The same, with what `runtime.devices` says of its one device, if it names one, where a process looks."""
        if not self.runtime.devices:
            return self
        [device] = self.runtime.devices
        told = {"backend": "cpu"} if device == "cpu" else {"device_ordinal": int(device)}
        return self.model_copy(update={"runtime": self.runtime.model_copy(update=told)})

    def effective(self) -> dict[str, Effective]:
        """Every setting, by its path in the node file, such as `runtime.backend`."""
        found = {}
        for path in paths(type(self)):
            value: Any = self.model_dump(mode="json", include=set(path[:1]))
            for part in path:
                value = value[part]
            found[".".join(path)] = Effective(value, self._source(path))
        return found

    def _source(self, path: Sequence[str]) -> Literal["default", "node file", "environment"]:
        if variable(path) in os.environ:
            return "environment"
        given: Any = self._given
        for part in path:
            if not isinstance(given, Mapping) or part not in given:
                return "default"
            given = given[part]
        return "node file"


def paths(settings: type[Settings]) -> Iterator[tuple[str, ...]]:
    """Where each setting stands: its name, behind that of its section if it is in one."""
    for name, field in settings.model_fields.items():
        section = _section(field)
        if section is None:
            yield (name,)
        else:
            yield from ((name, inner) for inner in section.model_fields)


def variable(path: Sequence[str]) -> str:
    """The environment variable that sets what stands there."""
    return "_".join((PREFIX.rstrip("_"), *path)).upper()


def variables(settings: type[Settings]) -> Iterator[str]:
    """The name of every environment variable that is read."""
    yield NODE_FILE
    yield from map(variable, paths(settings))


def explain(error: ValidationError) -> str:
    """What is wrong with each setting: the name of its environment variable, its value, and what is allowed."""
    return "; ".join([_explain(each) for each in error.errors(include_url=False)])


def _explain(fault: ErrorDetails) -> str:
    """One fault. A value that the environment does not hold comes from the node file."""
    first, *rest = [str(part) for part in fault["loc"]]
    known: Mapping[str, FieldInfo] = Settings.model_fields
    variable, field = f"{PREFIX}{first}".upper(), known.get(first)
    if rest and field is not None and (section := _section(field)) is not None:
        variable, known = f"{variable}_{rest[0]}".upper(), section.model_fields
        field, rest = known.get(rest[0]), rest[1:]
    path = ".".join(["node file: global", *map(str, fault["loc"])])
    name = ".".join([variable, *rest]) if variable in os.environ else path
    types = [] if field is None else _types(field.annotation)
    if fault["type"] == "extra_forbidden":
        for inner in types:
            known = inner.model_fields if isinstance(inner, type) and issubclass(inner, BaseModel) else known
        return f"{name}: no such setting; known are: {', '.join(known)}"
    if fault["type"] in ("too_short", "string_too_short") and not fault["input"]:
        return f"{name}: is empty: give it a value, or leave it out"
    return f"{name}={'(hidden)' if SecretStr in types else repr(fault['input'])}: {fault['msg']}"


def _types(annotation: Any) -> list[Any]:
    """An annotation and everything that it is made of."""
    return [annotation, *(part for each in get_args(annotation) for part in _types(each))]


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a nested section; None for a plain setting."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _refuse_unknown(known: set[str]) -> None:
    """Compare every variable of ours with the known names; its value is not shown, it may be a misnamed secret."""
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name not in known:
            close = get_close_matches(name.upper(), known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"known are: {', '.join(sorted(known))}"
            raise SettingsError(f"unknown environment variable {name}: {meant}")


def _node_file(path: str | None) -> Mapping[str, Any]:
    """The `global:` block of the node file; the `worker:` block is free for other readers."""
    if path is None:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{NODE_FILE}={path}: {error}") from error
    if not isinstance(content, dict) or not content.keys() <= {"global", "worker"}:
        raise SettingsError(f"{path}: the top-level keys are `global` and `worker`")
    settings = content.get("global") or {}
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise SettingsError(f"{path}: `global` is no mapping from settings to values")
    return {name: value for name, value in settings.items() if value is not None}
