"""The own servers of a workload: the bundles it names, and one server for each combination of settings."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from app.domain.config import EndpointsConfig, ModelPolicy, RuntimeConfig, SchedulerConfig
from app.settings import Settings
from load_tests.cnn import resnet50
from load_tests.models import EXAMPLES, mlp, write_bundle
from load_tests.processes import Server, inference_server
from load_tests.treadmill import treadmill, turn_seconds

#: In which section of the settings a short name is looked for, and what its variables begin with.
_SECTIONS: Sequence[tuple[type[BaseModel], str]] = (
    (SchedulerConfig, "SCHEDULER_"),
    (RuntimeConfig, "RUNTIME_"),
    (EndpointsConfig, "ENDPOINTS_"),
    (Settings, ""),
)


def bundles(root: Path, models: Mapping[str, str]) -> Path:
    """A model directory with these models, by source:

    `example` is the bundle of that name in this repository; `mlp 64 128 10` a chain of so wide layers; `treadmill 4 8`
    a model that takes 4 ms here for up to 8 rows (1, 2, 4 and 8 are compiled); `resnet50` a CNN of that shape; anything
    else the path of a bundle. Raises `ValueError` for what is none of them.
    """
    directory = root / "bundles"
    directory.mkdir(parents=True)
    for name, source in models.items():
        kind, *numbers = source.split()
        if kind == "mlp":
            write_bundle(directory, name, mlp([int(each) for each in numbers]))
        elif kind == "resnet50":
            write_bundle(directory, name, resnet50())
        elif kind == "treadmill":
            milliseconds, largest = float(numbers[0]), int(numbers[1])
            sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= largest]
            manifest = f'format_version: "1"\nbatching: {{compiled_batch_sizes: {sizes}}}\n'
            write_bundle(directory, name, treadmill(round(milliseconds / 1e3 / turn_seconds())), manifest)
        else:
            path = EXAMPLES / name if source == "example" else Path(source)
            if not (path / "manifest.yaml").exists() and not (path / "model.onnx").exists():
                raise ValueError(f"model {name!r}: {source!r} is neither a source nor the path of a bundle")
            (directory / name).symlink_to(path.resolve())
    return directory


def parse_settings(text: str) -> dict[str, Any]:
    """`max_batch_size=1 discipline=edf`: values are JSON, or else text."""
    parsed = {}
    for each in text.split():
        name, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"{each!r} is not of the form setting=value")
        try:
            parsed[name] = json.loads(value)
        except ValueError:
            parsed[name] = value
    return parsed


def variants(vary: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every combination of `setting=value,value,…`, by label; without any, one that is called `default`."""
    axes = []
    for text in vary:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"{text!r} is not of the form setting=value,value")
        axes.append([f"{name}={value}" for value in values.split(",")])
    labels = [" ".join(each) for each in itertools.product(*axes)]
    return {label or "default": parse_settings(label) for label in labels}


def variables(settings: Mapping[str, Any], models: Sequence[str]) -> dict[str, str]:
    """The environment, without its prefix, for settings by their short names.

    Settings of a model's policy hold for every model. Raises `ValueError` for a name that no section has.
    """
    found: dict[str, str] = {}
    policy: dict[str, Any] = {}
    for name, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value)
        for section, prefix in _SECTIONS:
            if name in section.model_fields:
                found[f"{prefix}{name.upper()}"] = text
                break
        else:
            if name not in ModelPolicy.model_fields:
                raise ValueError(f"there is no setting {name!r}")
            policy[name] = value
    if policy:
        found["SCHEDULER_MODELS"] = json.dumps(dict.fromkeys(models, policy))
    return found


@contextmanager
def servers(
    directory: Path, cache: Path, models: Sequence[str], settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Server]]:
    """A server for each variant, by label, all at once: an idle one costs the others next to nothing."""
    with ExitStack() as running:
        yield {
            label: running.enter_context(inference_server(directory, CACHE_DIR=str(cache), **variables(wanted, models)))
            for label, wanted in settings.items()
        }
