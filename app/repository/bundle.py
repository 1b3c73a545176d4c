"""A bundle, read from disk: specification, hooks and where its graph is."""

from dataclasses import dataclass
from pathlib import Path

from app.domain.model import ModelSpec
from app.repository.hooks import Hooks


@dataclass(frozen=True)
class Bundle:
    """A bundle as it was on disk when it was read; `digest` changes when any of its files does.

    `model_file` is the ONNX file (None for a meta model), wherever it lies.
    """

    path: Path
    spec: ModelSpec
    hooks: Hooks
    digest: str
    model_file: Path | None
