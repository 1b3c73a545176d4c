"""Devices: a table of backends, each imported only when it is chosen."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from app.backends.base import Backend
from app.domain.config import RuntimeConfig

# ONNX Runtime reports its use to its maker over the network, and keeps a file for it, unless this is set before it is
# imported. Child processes inherit it; whoever wants the reports sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

#: Configured name → module with `create(config, cache_dir)`.
BACKENDS: Mapping[str, str] = {
    "auto": "app.backends.onnxruntime",
    "cpu": "app.backends.onnxruntime",
    "cuda": "app.backends.onnxruntime",
}


def create(config: RuntimeConfig, cache_dir: Path) -> Backend:
    """The backend that `config.backend` names, with its compile cache in `cache_dir`. Raises `Unsupported`."""
    backend: Backend = import_module(BACKENDS[config.backend]).create(config, cache_dir)
    return backend
