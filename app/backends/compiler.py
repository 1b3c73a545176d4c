"""Bringing bundles into the compile cache, with a child process to do the work and to take the crashes."""

import hashlib
import logging
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

from app.backends.base import CacheEntry
from app.backends.cache import CompileCache, cpu_features, key_of
from app.backends.child import ANSWER_SECONDS, CHILD_MODULE, ChildDiedError, CompileChild
from app.backends.cuda import cuda_driver
from app.backends.digests import FileDigests, digest_file
from app.backends.entry import BOUND, GRAPH_FILES, PLAIN, StoredEntry, StoredGraph
from app.backends.job import sample_to_npz, spec_to_json
from app.backends.sessions import SessionConfig
from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors

_log = logging.getLogger(__name__)

#: How often a bundle is begun when its child is killed from outside, as by the kernel when memory is short.
_ATTEMPTS = 3


class Compiler:
    """Compiles one bundle at a time (loader thread); `close` is for any thread."""

    def __init__(
        self,
        cache_dir: Path,
        config: SessionConfig,
        child_module: str = CHILD_MODULE,
        answer_seconds: float = ANSWER_SECONDS,
        cache_bytes: int = 0,
    ) -> None:
        self._cache = CompileCache(cache_dir, cache_bytes)
        self._config = config
        self._child = CompileChild(child_module, answer_seconds)
        self._digests = FileDigests(cache_dir / "digests", self._digest_in_child)

    def compile(self, model_file: Path, spec: ModelSpec, sample: Tensors | None = None) -> CacheEntry:
        """The entry of a model, made if it is not there; `sample` as in `Backend.compile`.

        Raises `BundleError` naming the file.
        """
        model_file = model_file.absolute()
        npz = b"" if sample is None else sample_to_npz(spec, sample)
        attempt = 1
        while True:
            try:
                return self._compile(model_file, spec, npz)
            except OSError as error:
                raise BundleError(f"{model_file}: cannot be compiled: {error}") from error
            except ChildDiedError as error:
                trouble = (
                    f"{error}, as when memory is short: attempt {attempt} of {_ATTEMPTS}"
                    if error.killed
                    else str(error)
                )
                if not error.killed or attempt == _ATTEMPTS:
                    raise BundleError(f"{model_file}: cannot be compiled: {trouble}") from error
                _log.warning("%s: %s", model_file, trouble)
            attempt += 1

    def digest(self, file: Path) -> str:
        """SHA-256 of a file, in hex (loader thread). Raises `OSError`."""
        return self._digests.digest(file)

    def remember(self, entry: CacheEntry, costs: Mapping[tuple[str, int], float], load_seconds: float) -> None:
        """Keep what was measured of an entry, as this many threads run it; a full disk is no reason to complain."""
        with suppress(OSError):
            self._cache.note_measured(entry.path.name, self._profile, costs, load_seconds)

    @property
    def _profile(self) -> str:
        return f"{self._config.provider.name}, {self._config.threads} threads"

    def try_device(self) -> str:
        """Empty when the configured device runs a model, else what is wrong."""
        try:
            answer = self._ask(job="try_device")
        except (ChildDiedError, OSError) as error:
            return str(error)
        return _complaint(answer) if answer else ""

    def close(self) -> None:
        """End the child; a compilation that is under way raises `BundleError`. Idempotent."""
        self._child.close()

    def _compile(self, model_file: Path, spec: ModelSpec, npz: bytes) -> CacheEntry:
        source = self._look_at(model_file)
        key = self._key(source, spec, npz)
        entry = self._cache.open(key) or replace(self._build(key, source, spec, npz), made=True)
        costs, load_seconds = self._cache.measured(key, self._profile)
        return replace(entry, costs=costs, load_seconds=load_seconds)

    def _look_at(self, model_file: Path) -> "_Source":
        digest = self.digest(model_file)
        names = self._cache.external_files(digest)
        if names is None:
            answer = self._ask(job="external_files", model_file=str(model_file))
            self._check_unchanged(_Source(model_file, digest, {}))
            if "files" not in answer:
                raise BundleError(_complaint(answer, model_file))
            names = tuple(answer["files"])
            self._cache.note_external_files(digest, names)
        return _Source(model_file, digest, {name: self.digest(model_file.parent / name) for name in names})

    def _check_unchanged(self, source: "_Source") -> None:
        """Raise `BundleError` when what the child has read since may be something else."""
        now = {name: self.digest(source.file.parent / name) for name in source.external}
        if self.digest(source.file) != source.digest or now != source.external:
            raise BundleError(f"{source.file}: changed while it was compiled; it will be looked at again")

    def _key(self, source: "_Source", spec: ModelSpec, npz: bytes) -> str:
        return key_of(
            {
                "model": source.digest,
                "external": source.external,
                "onnxruntime": ort.__version__,
                "provider": self._config.provider.name,
                "cpu": cpu_features(),
                "spec": spec_to_json(spec),
                # It decides what can be proved, and so the form.
                "sample": hashlib.sha256(npz).hexdigest(),
                "graphs": self._graphs,
            }
        )

    @property
    def _graphs(self) -> str:
        """On what CUDA graphs are proved, where they are."""
        if not self._config.graphs:
            return ""
        return cuda_driver(self._config.ordinal).identity if self._config.provider.needs_libraries else "host"

    def _build(self, key: str, source: "_Source", spec: ModelSpec, npz: bytes) -> CacheEntry:
        with tempfile.NamedTemporaryFile(suffix=".npz") as sample:
            sample.write(npz)
            sample.flush()
            return self._try_forms(key, source, spec, sample.name)

    def _try_forms(self, key: str, source: "_Source", spec: ModelSpec, sample: str) -> CacheEntry:
        """Try the forms, best first, until one is proved."""
        reasons: list[str] = []
        forms = list(self._config.provider.forms)
        while forms:
            form = forms.pop(0)
            with self._cache.workspace() as workspace:
                try:
                    answer = self._ask(
                        job="compile",
                        form=form,
                        model_file=str(source.file),
                        target=str(workspace),
                        spec=spec_to_json(spec),
                        sample=sample,
                    )
                except ChildDiedError as error:
                    if not error.crashed:
                        raise
                    answer = {"unfit": str(error)}
                self._check_unchanged(source)
                if "refused" in answer:
                    raise BundleError(_complaint(answer, source.file))
                if "entry" in answer:
                    stored = StoredEntry.from_json(answer["entry"])
                    stored = self._with_graphs(stored, workspace, source.file, spec, sample)
                    reasons.extend([stored.reason] if stored.reason else [])
                    return self._cache.publish(workspace, key, replace(stored, reason="; ".join(reasons)))
            if "unprovable" in answer:  # whatever the form: writing out large weights again would tell nothing new
                forms = [each for each in forms if each == PLAIN]
            reasons.append(f"not {form}: {_complaint(answer)}")
            _log.warning("%s: %s", source.file, reasons[-1])
        raise BundleError(f"{source.file}: cannot be compiled: {'; '.join(reasons)}")

    def _with_graphs(
        self, stored: StoredEntry, workspace: Path, model_file: Path, spec: ModelSpec, sample: str
    ) -> StoredEntry:
        """The entry with what came of recording its executions; a child that this costs costs nothing else."""
        if not self._config.graphs or stored.form != BOUND:
            return stored
        job = {"target": str(workspace), "spec": spec_to_json(spec), "sample": sample, "entry": stored.to_json()}
        answer, attempt = self._try_graphs(job), 1
        while "killed" in answer and attempt < _ATTEMPTS:
            answer, attempt = self._try_graphs(job), attempt + 1
        if "entry" in answer:
            return StoredEntry.from_json(answer["entry"])
        _log.warning("%s: CUDA graphs are not used: %s", model_file, _complaint(answer))
        for file in workspace.glob(GRAPH_FILES):
            file.unlink()
        shapes = [(variant.key, size) for variant in spec.variants for size in spec.sizes(variant.key) or (0,)]
        return replace(stored, graphs=tuple(StoredGraph(*shape, _complaint(answer)) for shape in shapes))

    def _try_graphs(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """The child's answer, or how it ended. Raises `ChildDiedError` when compiling is stopped."""
        try:
            return self._ask(job="try_graphs", **job)
        except ChildDiedError as error:
            if error.stopped:
                raise
            return {"killed" if error.killed else "died": str(error)}

    def _digest_in_child(self, file: Path) -> str:
        """Serving comes first there, and nothing is held that another thread of this process waits for."""
        with suppress(ChildDiedError):
            if found := self._ask(job="digest", file=str(file.absolute())).get("digest"):
                return str(found)
        return digest_file(file)

    def _ask(self, **job: Any) -> Mapping[str, Any]:
        config = self._config
        return self._child.ask(
            {**job, "provider": config.provider.name, "ordinal": config.ordinal, "threads": _threads(config.threads)}
        )


@dataclass(frozen=True)
class _Source:
    """A model as it was when it was looked at: digests of the file and, by name, of its external data."""

    file: Path
    digest: str
    external: Mapping[str, str]


def _threads(serving: int) -> int:
    """Threads of the child, of those that an execution has: half the cores stay free, however nice the child is.

    With all of them, on two cores that others wanted too, the 99th percentile of another model's answers was 2.7 times
    as long as without a load, with half of them 1.7 times, and the load took no longer.
    """
    return max(1, serving // 2)


def _complaint(answer: Mapping[str, Any], model_file: Path | None = None) -> str:
    """What an answer complains of, with the file's name in it."""
    complaint = str(next(iter(answer.values())))
    return complaint if model_file is None or str(model_file) in complaint else f"{model_file}: {complaint}"
