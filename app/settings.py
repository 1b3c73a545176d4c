"""The settings of the process: defaults, then the node file, then the environment; the composition root reads them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from app.domain.config import EndpointsConfig, RuntimeConfig, SchedulerConfig

PREFIX = "INFERENCE_SERVER_"
NODE_FILE = PREFIX + "NODE_FILE"


class SettingsError(ValueError):
    """A setting that stops the start; the message names it, its value and what is allowed."""


def _split(separator: str) -> BeforeValidator:
    def split(value: Any) -> Any:
        return tuple(part for part in value.split(separator) if part) if isinstance(value, str) else value

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
    startup_models: Names | None = None
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
    runtime: RuntimeConfig = RuntimeConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    endpoints: EndpointsConfig = EndpointsConfig()

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
        """Read node file and environment. Raises `SettingsError` or pydantic's `ValidationError`."""
        unknown = [name for name in os.environ if name.startswith(PREFIX) and name not in set(variables(cls))]
        if unknown:
            raise SettingsError(
                f"unknown environment variable {sorted(unknown)[0]}; known are: {', '.join(sorted(variables(cls)))}"
            )
        return cls(**_node_file(os.environ.get(NODE_FILE)))


def variables(settings: type[Settings]) -> Iterator[str]:
    """The name of every environment variable that is read."""
    yield NODE_FILE
    for name, field in settings.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from (f"{PREFIX}{name}_{inner}".upper() for inner in annotation.model_fields)
        else:
            yield f"{PREFIX}{name}".upper()


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
    return TypeAdapter(dict[str, Any]).validate_python(content.get("global") or {})
