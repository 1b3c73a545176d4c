"""Brings a bundle from its directory to its sessions, on a thread of its own, never on the dispatcher's time."""

import concurrent.futures
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from app.backends.base import Backend, CacheEntry, Prepared
from app.domain.batch_safety import BatchProbe, Padding, Verdict, judge
from app.domain.errors import BundleError, ShuttingDown
from app.domain.model import ModelSpec
from app.repository.build import Builder
from app.repository.bundle import Bundle, load_bundle
from app.runtime.hook_process import isolate

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

#: The form of what a meta model has to map: nothing.
META = "meta"


@dataclass(frozen=True, slots=True)
class CompiledBundle:
    """A bundle and its entry in the compile cache; that of a meta model stands for nothing."""

    bundle: Bundle
    entry: CacheEntry


class Loader:
    """One thread, named `loader_0`: loads follow one another, so that they take one core from serving, not all."""

    def __init__(self, backend: Backend, builder: Builder | None = None) -> None:
        """Without a `builder`, bundles whose model is to be built first are refused."""
        self._backend = backend
        self._builder = builder
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._stopping = False

    def submit(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Run a job on the loader thread (any thread). The future raises `ShuttingDown` once the loader stops."""

        def run() -> T:
            self.check()
            return job(*args, **kwargs)

        try:
            return self._executor.submit(run)
        except RuntimeError:  # it has stopped
            refused: concurrent.futures.Future[T] = concurrent.futures.Future()
            refused.set_exception(ShuttingDown("the server is shutting down"))
            return refused

    def check(self) -> None:
        """Raise `ShuttingDown` once the loader is to stop (any thread): a load looks between its steps."""
        if self._stopping:
            raise ShuttingDown("the server is shutting down")

    def compile(self, path: Path, padding: Padding | None = None) -> CompiledBundle:
        """Read and compile a bundle (loader thread). Raises `BundleError`, or `ShuttingDown` when stopped.

        `padding`, where it is given, fills partial batches instead of what the bundle says. The bundle's hooks run, and
        are to be closed when it is no longer needed.
        """
        try:
            bundle = load_bundle(path, isolate, self._builder, self._backend.digest)
        except BundleError:
            self.check()
            raise
        try:
            return self._compile(bundle, padding)
        except BaseException:
            bundle.hooks.close()
            raise

    def build(self, compiled: CompiledBundle) -> Prepared:
        """Make the sessions of a compiled bundle (loader thread). Raises `BundleError` or `OutOfMemory`."""
        return self._backend.prepare(compiled.entry, compiled.bundle.spec)

    def remember(self, compiled: CompiledBundle, costs: Mapping[tuple[str, int], float], load_seconds: float) -> None:
        """Keep what was measured for the next start."""
        self._backend.remember(compiled.entry, costs, load_seconds)

    def _compile(self, bundle: Bundle, padding: Padding | None) -> CompiledBundle:
        if bundle.model_file is None:
            return CompiledBundle(bundle, CacheEntry(bundle.path, META, 0))
        try:
            entry = self._backend.compile(bundle.model_file, bundle.spec, bundle.sample)
        except BundleError:
            self.check()
            raise
        return CompiledBundle(replace(bundle, spec=admit(bundle.spec, entry.batch_probe, padding)), entry)

    def stop(self) -> None:
        """Drop what has not begun, end a build or a compilation under way, and join the thread.

        What is dropped fails: a future that an executor cancels would leave those hanging who wait for several.
        """
        self.abandon()
        self._executor.shutdown(wait=True)

    def abandon(self) -> None:
        """Let loads end with `ShuttingDown`, those under way too; nothing waits for that (any thread)."""
        self._stopping = True
        if self._builder is not None:
            self._builder.close()
        self._backend.close()


def admit(spec: ModelSpec, probe: BatchProbe, padding: Padding | None) -> ModelSpec:
    """The specification with the verdict on its batches; one that forbids them where that is to be enforced."""
    if not spec.coalescible:
        return spec
    safety = judge(spec.outputs, probe, spec.batch_check, padding or spec.padding)
    if safety.reason and safety.verdict is not Verdict.OFF:
        logger.warning("model %s: batches are %s: %s", spec.name, safety.verdict, safety.reason)
    if safety.verdict is not Verdict.UNSAFE or spec.batch_check.verify != "enforce":
        return replace(spec, batch_safety=safety)
    variants = tuple(replace(variant, compiled_sizes=()) for variant in spec.variants)
    return replace(spec, batch_safety=safety, batching=False, variants=variants)
