"""Making ONNX Runtime sessions: the options that every session here has, and the errors they raise in our words."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from app.backends.arena import share_arena, share_cuda_arena, shrink_arena, shrink_cuda_arena
from app.backends.entry import MODEL_FILE, StoredEntry
from app.backends.providers import Provider, truth
from app.domain.errors import BundleError, ExecutionFailed, OutOfMemory, ServingError
from app.domain.model import ModelSpec

_OUT_OF_MEMORY = re.compile(
    r"out of memory|failed to allocate memory|bad_?alloc|ALLOC_FAILED|smaller than requested bytes", re.IGNORECASE
)
_DEVICE_LOST = re.compile(
    r"CUDA (failure|error) 7\d\d|illegal memory access|device-side assert|launch failure|uncorrectable ECC",
    re.IGNORECASE,
)
_TERMINATED = "terminate flag"

#: ONNX Runtime's severity above which nothing is logged: what goes wrong is raised, and the caller logs it.
QUIET = 4


@dataclass(frozen=True)
class SessionConfig:
    """What all sessions of one backend share: the provider, which device, and threads per execution.

    `device_bytes` bounds what their activations take of an accelerator's memory; 0 for no bound. `graphs` says that
    executions are recorded as CUDA graphs where that is proved.
    """

    provider: Provider
    ordinal: int
    threads: int
    device_bytes: int = 0
    graphs: bool = False


def session_options(config: SessionConfig) -> Any:
    """Options for a quiet session that takes threads only while it runs."""
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    # Workers that spin after a run burn CPU time that the event loop needs: 145 ms a run instead of 66 for ResNet-50.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def sharing_options(config: SessionConfig) -> Any:
    """The same for a session that takes its activations from the arena of its device, as all that serve do."""
    share_arena()
    if config.provider.needs_libraries:
        _load_libraries()
        share_cuda_arena(config.ordinal, config.device_bytes)
    options = session_options(config)
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Initializers that are not mapped would otherwise stay in the shared arena after their session is gone.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    return options


def shrink_arenas(config: SessionConfig) -> None:
    """Give back what executions left in the arenas. No other execution may run meanwhile."""
    shrink_arena()
    if config.provider.needs_libraries:
        shrink_cuda_arena(config.ordinal)


def create_session(model: Path | bytes, options: Any, config: SessionConfig, without: Collection[str] = ()) -> Any:
    """A session that runs on the provider it was asked for, optimised `without` some of ONNX Runtime's ways.

    Raises `BundleError` when ONNX Runtime gave another.
    """
    if config.provider.needs_libraries:
        _load_libraries()
    session = ort.InferenceSession(
        model if isinstance(model, bytes) else str(model),
        options,
        providers=config.provider.chain(config.ordinal),
        enable_fallback=0,
        disabled_optimizers=list(without) or None,
    )
    if truth(session) != config.provider.execution_provider:
        raise BundleError(
            f"asked for {config.provider.execution_provider}, but the session runs on {truth(session)}: "
            "the provider's libraries or its device are missing"
        )
    return session


def open_entry(
    path: Path, entry: StoredEntry, spec: ModelSpec, config: SessionConfig, variant: str | None, size: int
) -> Any:
    """A session over a cache entry, with the dims of `variant` and a batch of `size` fixed; None and 0 leave them free.

    Raises `BundleError` naming tensor and extents when the dims did not take, and whatever ONNX Runtime raises.
    """
    options = sharing_options(config)
    if entry.is_quick(variant, size):
        options.intra_op_num_threads = 1
    if entry.optimised:
        # Another round of constant folding would make private copies of what was folded and saved already.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, extent in entry.layout.overrides(variant, size).items():
        options.add_free_dimension_override_by_name(name, extent)
    session = create_session(path / MODEL_FILE, options, config)
    _check_dims(session, spec, {} if variant is None else spec.variants_by_key[variant].dims, size)
    return session


def session_key(entry: StoredEntry, config: SessionConfig, variant: str, size: int) -> tuple[str | None, int]:
    """Which session serves (variant, size): its own where weights are mapped, else one with free dims that serves all.

    So the weights are there once in either case.
    """
    return (variant, size) if entry.shared and config.provider.session_per_size else (None, 0)


def _check_dims(session: Any, spec: ModelSpec, dims: Mapping[tuple[str, int], int], size: int) -> None:
    """Overrides of unknown or unnamed dims are ignored without a word, so the result is what has to be looked at."""
    shapes = {value.name: value.shape for value in session.get_inputs()}
    wanted = dict(dims)
    if size:
        wanted |= {(t.name, t.batch_axis): size for t in spec.inputs if t.batch_axis is not None}
    for (name, axis), extent in wanted.items():
        if shapes[name][axis] != extent:
            raise BundleError(
                f"axis {axis} of input {name!r} could not be fixed at {extent}: the graph has {shapes[name]}"
            )


def translate(error: Exception) -> ServingError:
    """What ONNX Runtime raised, as one of our errors, with its message and nothing else."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(message):
        return OutOfMemory(message)
    if _DEVICE_LOST.search(message):
        return ExecutionFailed(message, reason="device_lost")
    if _TERMINATED in message:
        return ExecutionFailed("the execution was ended before it was done", reason="terminated")
    return ExecutionFailed(message)


@cache
def _load_libraries() -> None:
    """Find the CUDA libraries that come as Python packages; those of the system are found without."""
    ort.preload_dlls()
