"""The ONNX Runtime backend: one session per (variant, compiled size), all over one copy of the weights."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from app.backends.arena import shrink_arena
from app.backends.base import Backend, CacheEntry, DeviceMemory
from app.backends.cache import read_entry
from app.backends.compiler import Compiler
from app.backends.entry import PLAIN
from app.backends.execution import Runner, runner_for
from app.backends.memory import CudaDriver, advise, private_bytes, trim_heap
from app.backends.providers import PROVIDERS, truth
from app.backends.sessions import QUIET, SessionConfig, open_entry, session_key, translate
from app.backends.threads import usable_cores
from app.domain.config import RuntimeConfig
from app.domain.errors import BundleError, ExecutionFailed, OutOfMemory, ServingError, Unsupported
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors

_log = logging.getLogger(__name__)


def create(config: RuntimeConfig, cache_dir: Path) -> Backend:
    """The backend that `config` asks for; `auto` takes CUDA when a device answers.

    Raises `Unsupported` when CUDA is asked for, does not answer, and the CPU may not take its place.
    """
    if config.backend != "cpu":
        backend = _build("cuda", config, cache_dir)
        trouble = backend.trouble()
        if not trouble:
            return backend
        backend.close()
        if config.backend == "cuda" and not config.allow_cpu_fallback:
            raise Unsupported(
                f"runtime.backend is 'cuda', but device {config.device_ordinal} does not answer: {trouble}; "
                "repair it, or set runtime.backend to 'cpu' or runtime.allow_cpu_fallback to true"
            )
        _log.log(logging.WARNING if config.backend == "cuda" else logging.INFO, "serving on the CPU: %s", trouble)
    return _build("cpu", config, cache_dir)


class OnnxRuntimeBackend:
    """One device, served by ONNX Runtime."""

    def __init__(self, config: SessionConfig, runtime: RuntimeConfig, cache_dir: Path) -> None:
        self._config = config
        self._runtime = runtime
        self._compiler = Compiler(cache_dir, config, cache_bytes=runtime.compile_cache_bytes)
        self._loaded: set[SessionModel] = set()  # changed on the dispatcher thread only

    @property
    def name(self) -> str:
        """`cpu` or `cuda`."""
        return self._config.provider.name

    def trouble(self) -> str:
        """Why the device does not answer; empty when it ran a model. Takes a second when there may be a device."""
        try:
            CudaDriver(self._config.ordinal)
        except OSError as error:
            return str(error)
        return self._compiler.try_device()

    def compile(self, model_file: Path, spec: ModelSpec, sample: Tensors | None = None) -> CacheEntry:
        """The entry of a model in the compile cache (loader thread). Raises `BundleError` naming the file."""
        return self._compiler.compile(model_file, spec, sample)

    def prepare(self, entry: CacheEntry, spec: ModelSpec) -> "PreparedModel":
        """Build the sessions (loader thread). Raises `BundleError` or `OutOfMemory`."""
        stored = read_entry(entry.path)
        if stored is None:
            raise BundleError(f"{spec.name}: the compile-cache entry {entry.path} is gone or damaged; load it again")
        opened: dict[tuple[str | None, int], Any] = {}
        sessions: dict[tuple[str, int], Any] = {}
        try:
            for variant in spec.variants:
                for size in spec.sizes(variant.key) or (0,):
                    key = session_key(stored, self._config, variant.key, size)
                    if key not in opened:
                        opened[key] = open_entry(entry.path, stored, spec, self._config, *key)
                    sessions[variant.key, size] = opened[key]
        except BundleError as error:
            raise BundleError(f"{spec.name}: {error.message}") from error
        except Exception as error:
            raise _loading_error(spec, error) from error
        trim_heap()
        return PreparedModel(SessionModel(sessions, spec, entry, self._loaded), self._loaded)

    def remember(self, entry: CacheEntry, costs: Mapping[tuple[str, int], float], load_seconds: float) -> None:
        """Keep what was measured for the next start (loader thread)."""
        self._compiler.remember(entry, costs, load_seconds)

    def keep_warm(self, entry: CacheEntry) -> None:
        """Ask the system to read the entry's files into its page cache."""
        advise(entry.path, os.POSIX_FADV_WILLNEED)

    def let_go(self, entry: CacheEntry) -> None:
        """Let the system drop the entry's files from its page cache; what another process has mapped stays."""
        advise(entry.path, os.POSIX_FADV_DONTNEED)

    def shrink(self) -> None:
        """Give back what executions left in the arena (dispatcher thread)."""
        shrink_arena()

    def arena_bytes(self) -> int:
        """On CUDA the part of the device that may be used; on CPU what was configured, 0 for no bound."""
        if self.name == "cuda":
            return int(CudaDriver(self._config.ordinal).memory().limit * self._runtime.mem_fraction)
        return self._runtime.device_memory_bytes

    def memory(self) -> DeviceMemory:
        """On CPU, memory that no file backs plus the weights of the loaded models; on CUDA, the whole device."""
        if self.name == "cuda":
            device = CudaDriver(self._config.ordinal).memory()
            return DeviceMemory(device.in_use, int(device.limit * self._runtime.mem_fraction))
        mapped = sum(model.mapped_bytes for model in tuple(self._loaded))
        return DeviceMemory(private_bytes() + mapped, self._runtime.device_memory_bytes)

    def close(self) -> None:
        """End the compile child; a compilation under way fails. Any thread; idempotent."""
        self._compiler.close()


class PreparedModel:
    """Sessions that wait for the dispatcher to take them over."""

    def __init__(self, model: "SessionModel", loaded: "set[SessionModel]") -> None:
        self._model = model
        self._loaded = loaded

    def load(self) -> "SessionModel":
        """Take the model over (dispatcher thread)."""
        self._loaded.add(self._model)
        return self._model


class SessionModel:
    """A model whose executables are live sessions."""

    def __init__(
        self,
        sessions: Mapping[tuple[str, int], Any],
        spec: ModelSpec,
        entry: CacheEntry,
        loaded: "set[SessionModel]",
    ) -> None:
        self._provider = truth(next(iter(sessions.values())))
        # The native sessions are enough to run, and the wrappers keep more than a run needs.
        self._sessions = {key: session._sess for key, session in sessions.items()}
        self._runner: Runner = runner_for(spec)
        self._options = ort.RunOptions()
        self._options.log_severity_level = QUIET
        self._entry = entry
        self._loaded = loaded

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, shared by all compiled sizes."""
        return self._entry.weight_bytes

    @property
    def mapped_bytes(self) -> int:
        """Bytes of weights that are mapped from the entry, as against copied into the process."""
        return 0 if self._entry.form == PLAIN else self._entry.weight_bytes

    @property
    def provider(self) -> str:
        """The execution provider that the sessions got."""
        return self._provider

    def run(self, variant: str, size: int, inputs: Tensors) -> Tensors:
        """Execute once (dispatcher thread). Raises `ExecutionFailed` or `OutOfMemory`."""
        session = self._sessions.get((variant, size)) or self._sessions.get((variant, 0))
        if session is None:
            raise ExecutionFailed(f"no session for variant {variant!r} at batch size {size}")
        self._options.terminate = False  # what was asked of an earlier run is none of this one's
        try:
            return self._runner(session, inputs, self._options)
        except Exception as error:
            raise translate(error) from error

    def terminate(self) -> None:
        """End the running execution at its next node; any thread."""
        self._options.terminate = True

    def unload(self) -> None:
        """Free sessions and weights (dispatcher thread). Idempotent."""
        if self._sessions:
            self._sessions = {}
            self._loaded.discard(self)
            trim_heap()


def _build(kind: str, config: RuntimeConfig, cache_dir: Path) -> OnnxRuntimeBackend:
    threads = config.intra_op_threads or usable_cores()
    return OnnxRuntimeBackend(SessionConfig(PROVIDERS[kind], config.device_ordinal, threads), config, cache_dir)


def _loading_error(spec: ModelSpec, error: Exception) -> ServingError:
    known = translate(error)
    if isinstance(known, OutOfMemory):
        return OutOfMemory(f"{spec.name}: no memory to load it: {known.message}")
    return BundleError(f"{spec.name}: cannot be loaded: {known.message}")
