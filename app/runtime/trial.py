"""Tries bundles where nobody is served: compiles them, and runs them at every size. On the calling thread."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.backends.base import Backend, CacheEntry, LoadedModel
from app.backends.entry import PLAIN
from app.backends.probes import probes
from app.domain.batch_safety import Verdict
from app.domain.config import ModelPolicy
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors
from app.repository.bundle import Bundle
from app.runtime.loader import CompiledBundle, Loader
from app.runtime.warmup import shapes

#: Runs of each (variant, size) that are timed; the fastest was disturbed least.
_RUNS = 3


@dataclass(frozen=True)
class Compiled:
    """A bundle that is in the compile cache; `seconds` is how long it took to get it there, or to find it."""

    bundle: Bundle
    entry: CacheEntry
    seconds: float

    @property
    def spec(self) -> ModelSpec:
        """The model as it would be served."""
        return self.bundle.spec

    @property
    def verdict(self) -> str:
        """Whether its batches are safe; "alone" where nothing is batched by declaration, nothing for a meta model."""
        if self.spec.is_meta:
            return ""
        return str(self.spec.batch_safety.verdict) if self.spec.batch_safety is not None else "alone"

    @property
    def warnings(self) -> Iterator[str]:
        """What an operator should know, though it is served."""
        if self.entry.reason and self.entry.form != PLAIN:
            yield f"its weights are kept in form {self.entry.form}: {self.entry.reason}"
        if self.verdict == "alone" and self.spec.batching:  # else the manifest wants it so
            yield (
                f"its requests run alone: {self.spec.batching_reason}; if rows are independent, export it with a "
                f"dynamic batch axis, else say so in the manifest (batching: {{enabled: false}})"
            )
        elif self.spec.batching_reason and self.verdict not in ("", "alone", Verdict.OFF):
            yield f"its batches are {self.verdict}: {self.spec.batching_reason}"


@dataclass(frozen=True)
class Execution:
    """One (variant, size) that was run: seconds of a run, and bytes by which two runs let the process grow.

    `fault` says why it did not run; empty where it did. A `size` of 1 stands for any where batches are not compiled.
    """

    variant: str
    size: int
    seconds: float = 0.0
    scratch_bytes: int = 0
    fault: str = ""

    @property
    def complaint(self) -> str:
        """The fault in a sentence."""
        return f"variant {self.variant!r} does not run at batch size {self.size}: {self.fault}"


class Trial:
    """Compiles and runs bundles as the server would. Raises what a load would raise: `ServingError`."""

    def __init__(
        self,
        backend: Backend,
        loader: Loader,
        policy_of: Callable[[str], ModelPolicy],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._loader = loader
        self._policy_of = policy_of
        self._clock = clock

    def compile(self, path: Path) -> Compiled:
        """Bring the bundle in a directory into the compile cache. Raises `ServingError`."""
        begun = self._clock()
        loaded = self._loader.compile(path, self._policy_of(path.name).padding)
        loaded.bundle.hooks.close()
        return Compiled(loaded.bundle, loaded.entry, self._clock() - begun)

    def run(self, compiled: Compiled) -> list[Execution]:
        """Run every (variant, size) of a compiled bundle; a meta model has none. Raises `ServingError`."""
        if compiled.bundle.model_file is None:
            return []
        model = self._loader.build(CompiledBundle(compiled.bundle, compiled.entry)).load()
        try:
            return [self._execute(model, compiled.bundle, *shape) for shape in shapes(compiled.spec)]
        finally:
            model.unload()

    def close(self) -> None:
        """End the children that compile and build."""
        self._loader.stop()

    def _execute(self, model: LoadedModel, bundle: Bundle, variant: str, size: int) -> Execution:
        spec, faults = bundle.spec, []
        for inputs in probes(spec, spec.variants_by_key[variant], size, bundle.sample):
            self._backend.shrink()
            before = self._backend.memory().in_use
            try:
                seconds = min([self._time(model, variant, size, inputs) for _ in range(_RUNS)])
            except Exception as error:  # whatever a backend raises: the next inputs may be taken
                faults.append(" ".join(str(error).split()))
            else:
                return Execution(variant, size, seconds, max(self._backend.memory().in_use - before, 0))
        return Execution(variant, size, fault=faults[0])

    def _time(self, model: LoadedModel, variant: str, size: int, inputs: Tensors) -> float:
        begun = self._clock()
        model.run(variant, size, inputs)
        return self._clock() - begun
