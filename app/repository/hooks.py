"""The bundle's own code: `preprocess`, `postprocess` and `run`, found in `hooks.py`."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from app.domain.errors import BundleError
from app.domain.tensors import Tensors
from app.repository.files import HOOKS_FILE


@dataclass(frozen=True, slots=True)
class HookContext:
    """The optional second argument of a hook: what is known of the request besides its tensors.

    `deadline` is monotonic seconds, infinity where there is none. `state` belongs to the hooks of this one request:
    what `preprocess` leaves there, `postprocess` finds.
    """

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = float("inf")
    state: dict[str, Any] = field(default_factory=dict)


Hook = Callable[[Tensors, HookContext], Tensors]


def _nothing() -> None:
    """What there is to close of hooks that run in this process."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """A bundle's hooks, each None where the bundle has none; always called with (tensors, context).

    `close` is called when no new call will come, from any thread, and does not wait; hooks in a process of their own
    end it then. It may be called again.
    """

    preprocess: Hook | None = None
    postprocess: Hook | None = None
    run: Callable[..., Tensors] | None = None
    close: Callable[[], None] = _nothing


def load_hooks(bundle_dir: Path) -> Hooks:
    """Execute the bundle's `hooks.py`, if there is one, and take its hooks. Raises `BundleError` naming the file.

    Every call makes a module of its own, so that a reloaded bundle never shares state with its predecessor.
    """
    source = read_source(bundle_dir)
    return Hooks() if source is None else hooks_of(bundle_dir, source)


def read_source(bundle_dir: Path) -> bytes | None:
    """The bundle's `hooks.py`; None if there is none."""
    try:
        return (bundle_dir / HOOKS_FILE).read_bytes()
    except FileNotFoundError:
        return None


def hooks_of(bundle_dir: Path, source: bytes, *, importable: bool = False) -> Hooks:
    """Execute the source of a bundle's `hooks.py` and take its hooks. Raises `BundleError` naming the file.

    `importable` leaves the module where pickle finds its classes: for a process that belongs to this bundle alone.
    """
    file = bundle_dir / HOOKS_FILE
    module = _execute(file, source)
    if importable:
        sys.modules[module.__name__] = module
    preprocess, postprocess, run = (_function(file, module, name) for name in ("preprocess", "postprocess", "run"))
    if preprocess is postprocess is run is None:
        raise BundleError(
            f"{file}: defines none of preprocess, postprocess and run: define one at the top level or remove the file"
        )
    return Hooks(
        preprocess and _with_context(file, "preprocess", preprocess),
        postprocess and _with_context(file, "postprocess", postprocess),
        run and _two_arguments(file, run),
    )


def _execute(file: Path, source: bytes) -> ModuleType:
    """Run the source as a module; the import system would cache bytecode by whole seconds and miss a quick edit."""
    digest = sha256(os.fsencode(file) + b"\0" + source).hexdigest()[:16]
    module = ModuleType(f"bundle hooks {digest}")  # not an identifier: no import statement reaches it
    module.__file__ = str(file)
    # Dataclasses and the like look their module up while it executes.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # whatever ends the import ends this bundle, not the loader
        raise BundleError(f"{file}: import failed{_line(file, error)}: {type(error).__name__}: {error}") from error
    finally:
        sys.modules.pop(module.__name__, None)
    return module


def _line(file: Path, error: BaseException) -> str:
    """Where in the file the import failed; a syntax error says so itself."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" at line {lines[-1]}" if lines else ""


def _function(file: Path, module: ModuleType, name: str) -> FunctionType | None:
    hook = getattr(module, name, None)
    if hook is None:
        return None
    if not isinstance(hook, FunctionType):
        raise BundleError(f"{file}: {name} is a {type(hook).__name__}, not a function: define it with def")
    if inspect.iscoroutinefunction(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        raise BundleError(f"{file}: {name} must return its tensors: define it without async and yield")
    return hook


def _with_context(file: Path, name: str, hook: FunctionType) -> Hook:
    """The hook as a function of (tensors, context), whether or not it takes the context."""
    if _takes(hook, 2):
        return hook
    if _takes(hook, 1):
        return lambda tensors, _context: hook(tensors)
    raise BundleError(
        f"{file}: {name} takes {inspect.signature(hook)}: it is called with (tensors) or (tensors, context)"
    )


def _two_arguments(file: Path, run: FunctionType) -> FunctionType:
    if not _takes(run, 2):
        raise BundleError(f"{file}: run takes {inspect.signature(run)}: it is called with (inputs, call)")
    return run


def _takes(function: FunctionType, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True
