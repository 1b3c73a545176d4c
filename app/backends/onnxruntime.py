"""The ONNX Runtime backend: sessions per (variant, compiled size), all over one copy of the weights."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from app.backends.base import Backend, CacheEntry, DeviceMemory
from app.backends.bound import Sessions, Shelf
from app.backends.cache import read_entry
from app.backends.compiler import Compiler
from app.backends.cuda import cuda_driver
from app.backends.entry import BOUND, PLAIN, WEIGHTS_FILE, StoredEntry
from app.backends.execution import Runner, open_native, runner_for
from app.backends.graphed import GraphedSession, GraphMemory, with_graphs
from app.backends.memory import advise, private_bytes, trim_heap
from app.backends.providers import PROVIDERS
from app.backends.sessions import QUIET, SessionConfig, session_key, shrink_arenas, translate
from app.backends.slab import Slab, open_slab
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
        self._shelf = Shelf()
        self._graphs = GraphMemory(config)

    @property
    def name(self) -> str:
        """`cpu` or `cuda`."""
        return self._config.provider.name

    def trouble(self) -> str:
        """Why the device does not answer; empty when it ran a model. Takes a second when there may be a device."""
        try:
            cuda_driver(self._config.ordinal)
        except OSError as error:
            return str(error)
        return self._compiler.try_device()

    def digest(self, file: Path) -> str:
        """SHA-256 of a file, in hex (loader thread). Raises `OSError`."""
        return self._compiler.digest(file)

    def compile(self, model_file: Path, spec: ModelSpec, sample: Tensors | None = None) -> CacheEntry:
        """The entry of a model in the compile cache (loader thread). Raises `BundleError` naming the file."""
        return self._compiler.compile(model_file, spec, sample)

    def prepare(self, entry: CacheEntry, spec: ModelSpec) -> "PreparedModel":
        """Build the sessions, or take those that wait for their weights (loader thread).

        Raises `BundleError` or `OutOfMemory`.
        """
        stored = read_entry(entry.path)
        if stored is None:
            raise BundleError(f"{spec.name}: the compile-cache entry {entry.path} is gone or damaged; load it again")
        try:
            with self._graphs.loading():
                sessions = self._shelf.take(entry, spec) or self._open(entry, stored, spec)
                slab = open_slab(entry.path / WEIGHTS_FILE, self._config) if stored.form == BOUND else None
        except BundleError as error:
            raise BundleError(f"{spec.name}: {error.message}") from error
        except Exception as error:
            raise _loading_error(spec, error) from error
        trim_heap()
        return PreparedModel(SessionModel(sessions, slab, entry, self._loaded, self._shelf), self._loaded)

    def _open(self, entry: CacheEntry, stored: StoredEntry, spec: ModelSpec) -> Sessions:
        opened: dict[tuple[str | None, int], tuple[Any, str]] = {}
        by_shape: dict[tuple[str, int], Any] = {}
        provider = ""
        for variant in spec.variants:
            for size in spec.sizes(variant.key) or (0,):
                key = session_key(stored, self._config, variant.key, size)
                if key not in opened:
                    opened[key] = open_native(entry.path, stored, spec, self._config, *key)
                by_shape[variant.key, size], provider = opened[key]
        return Sessions(spec, provider, with_graphs(by_shape, entry.path, stored, spec, self._config, self._graphs))

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
        """Give back what executions left in the arenas, and sessions that wait for weights (dispatcher thread).

        CUDA graphs go too, since whoever shrinks wants memory: they are recorded again.
        """
        for model in self._loaded:
            model.forget_graphs()
        self._shelf.clear()
        shrink_arenas(self._config)

    def arena_bytes(self) -> int:
        """On CUDA the part of the device that may be used; on CPU what was configured, 0 for no bound."""
        if self.name == "cuda":
            return self._config.device_bytes - self._graphs.limit
        return self._runtime.device_memory_bytes

    def memory(self) -> DeviceMemory:
        """On CPU, memory that no file backs plus the weights of the loaded models; on CUDA, the whole device."""
        if self.name == "cuda":
            return DeviceMemory(cuda_driver(self._config.ordinal).memory().in_use, self._config.device_bytes)
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
        sessions: Sessions,
        slab: Slab | None,
        entry: CacheEntry,
        loaded: "set[SessionModel]",
        shelf: Shelf,
    ) -> None:
        self._spec = sessions.spec
        self._provider = sessions.provider
        self._sessions = sessions.by_shape
        self._slab = slab
        self._runner: Runner = runner_for(sessions.spec)
        self._options = ort.RunOptions()
        self._options.log_severity_level = QUIET
        self._entry = entry
        self._loaded = loaded
        self._shelf = shelf
        self._sound = True
        if slab is not None:
            for session in self._sessions.values():
                session.attach(slab)

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
            known = translate(error)
            # A session that ran out of memory may fail for good.
            self._sound = self._sound and not isinstance(known, OutOfMemory)
            raise known from error

    def forget_graphs(self) -> None:
        """Destroy its CUDA graphs, if it has any, with what memory they have (dispatcher thread)."""
        for session in self._sessions.values():
            if isinstance(session, GraphedSession):
                session.forget()

    def terminate(self) -> None:
        """End the running execution at its next node; any thread."""
        self._options.terminate = True

    def unload(self) -> None:
        """Free the weights, and the sessions too unless they can wait without (dispatcher thread). Idempotent."""
        if not self._sessions:
            return
        if self._slab is not None:
            for session in self._sessions.values():
                session.detach()
            self._slab.close()
            if self._sound:
                self._shelf.put(self._entry, Sessions(self._spec, self._provider, self._sessions))
        self._sessions = {}
        self._loaded.discard(self)
        trim_heap()


def _build(kind: str, config: RuntimeConfig, cache_dir: Path) -> OnnxRuntimeBackend:
    on_cpu = kind == "cpu"
    # On an accelerator threads wait for it, and sessions that wait for their weights keep theirs.
    threads = config.intra_op_threads or (usable_cores() if on_cpu else 1)
    device_bytes = 0 if on_cpu else _device_bytes(config)
    provider = PROVIDERS[kind]
    graphs = provider.graphs and config.cuda_graphs
    chosen = SessionConfig(provider, config.device_ordinal, threads, device_bytes, graphs)
    return OnnxRuntimeBackend(chosen, config, cache_dir)


def _device_bytes(config: RuntimeConfig) -> int:
    """The part of the device's memory that may be used; 0 where no device answers."""
    try:
        return int(cuda_driver(config.device_ordinal).total_bytes * config.mem_fraction)
    except OSError:
        return 0


def _loading_error(spec: ModelSpec, error: Exception) -> ServingError:
    known = translate(error)
    if isinstance(known, OutOfMemory):
        return OutOfMemory(f"{spec.name}: no memory to load it: {known.message}")
    return BundleError(f"{spec.name}: cannot be loaded: {known.message}")
