"""The bundle's own code: `preprocess`, `postprocess` and `run`, found in `hooks.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.domain.tensors import Tensors


@dataclass(frozen=True, slots=True)
class HookContext:
    """The optional second argument of a hook: what is known of the request besides its tensors.

    `deadline` is monotonic seconds, infinity where there is none.
    """

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = float("inf")


Hook = Callable[[Tensors, HookContext], Tensors]


@dataclass(frozen=True, slots=True)
class Hooks:
    """A bundle's hooks, each None where the bundle has none; always called with (tensors, context)."""

    preprocess: Hook | None = None
    postprocess: Hook | None = None
    run: Callable[..., Tensors] | None = None
