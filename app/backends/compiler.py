"""Bringing bundles into the compile cache, with a child process to do the work and to take the crashes."""

import hashlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import onnxruntime as ort

from app.backends.base import CacheEntry
from app.backends.cache import CompileCache, cpu_features, digest_file, key_of
from app.backends.entry import StoredEntry
from app.backends.job import sample_to_npz, spec_to_json
from app.backends.sessions import SessionConfig
from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import Tensors

_log = logging.getLogger(__name__)

_CHILD_MODULE = "app.backends.compile_child"

#: Seconds after which a child that has not answered is taken to hang. Tens of GB of weights, read, written and run at
#: every size, take many minutes; nothing that ends takes this long.
ANSWER_SECONDS = 3600.0

#: Signals that a process brings upon itself. What kills it from outside says nothing about what it was doing.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)

#: Where `app` is imported from: the child has to find the same one.
_ROOT = Path(__file__).parents[2]


class ChildDiedError(Exception):
    """The compile child ended without an answer; the message says how.

    `crashed` says that it was its own doing, as against being killed or never having worked.
    """

    def __init__(self, message: str, *, crashed: bool = False) -> None:
        super().__init__(message)
        self.crashed = crashed


class Compiler:
    """Compiles one bundle at a time (loader thread); `close` is for any thread."""

    def __init__(
        self,
        cache_dir: Path,
        config: SessionConfig,
        child_module: str = _CHILD_MODULE,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._cache = CompileCache(cache_dir)
        self._config = config
        self._child = CompileChild(child_module, answer_seconds)

    def compile(self, model_file: Path, spec: ModelSpec, sample: Tensors | None = None) -> CacheEntry:
        """The entry of a model, made if it is not there; `sample` as in `Backend.compile`.

        Raises `BundleError` naming the file.
        """
        try:
            model_file = model_file.absolute()
            source = self._look_at(model_file)
            npz = b"" if sample is None else sample_to_npz(spec, sample)
            key = self._key(source, spec, npz)
            return self._cache.open(key) or self._build(key, source, spec, npz)
        except OSError as error:
            raise BundleError(f"{model_file}: cannot be compiled: {error}") from error
        except ChildDiedError as error:
            raise BundleError(f"{model_file}: cannot be compiled: {error}") from error

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

    def _look_at(self, model_file: Path) -> "_Source":
        digest = digest_file(model_file)
        names = self._cache.external_files(digest)
        if names is None:
            answer = self._ask(job="external_files", model_file=str(model_file))
            _Source(model_file, digest, {}).check_unchanged()
            if "files" not in answer:
                raise BundleError(_complaint(answer, model_file))
            names = tuple(answer["files"])
            self._cache.note_external_files(digest, names)
        return _Source(model_file, digest, {name: digest_file(model_file.parent / name) for name in names})

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
            }
        )

    def _build(self, key: str, source: "_Source", spec: ModelSpec, npz: bytes) -> CacheEntry:
        with tempfile.NamedTemporaryFile(suffix=".npz") as sample:
            sample.write(npz)
            sample.flush()
            return self._try_forms(key, source, spec, sample.name)

    def _try_forms(self, key: str, source: "_Source", spec: ModelSpec, sample: str) -> CacheEntry:
        """Try the forms, best first, until one is proved."""
        reasons: list[str] = []
        for form in self._config.provider.forms:
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
                source.check_unchanged()
                if "refused" in answer:
                    raise BundleError(_complaint(answer, source.file))
                if "entry" in answer:
                    stored = StoredEntry.from_json(answer["entry"])
                    reasons.extend([stored.reason] if stored.reason else [])
                    return self._cache.publish(workspace, key, replace(stored, reason="; ".join(reasons)))
            reasons.append(f"not {form}: {_complaint(answer)}")
            _log.warning("%s: %s", source.file, reasons[-1])
        raise BundleError(f"{source.file}: cannot be compiled: {'; '.join(reasons)}")

    def _ask(self, **job: Any) -> Mapping[str, Any]:
        config = self._config
        return self._child.ask(
            {**job, "provider": config.provider.name, "ordinal": config.ordinal, "threads": config.threads}
        )


@dataclass(frozen=True)
class _Source:
    """A model as it was when it was looked at: digests of the file and, by name, of its external data."""

    file: Path
    digest: str
    external: Mapping[str, str]

    def check_unchanged(self) -> None:
        """Raise `BundleError` when what the child has read since may be something else."""
        now = {name: digest_file(self.file.parent / name) for name in self.external}
        if digest_file(self.file) != self.digest or now != self.external:
            raise BundleError(f"{self.file}: changed while it was compiled; it will be looked at again")


class CompileChild:
    """The child process, started when it is needed; it ends by itself after a while without work."""

    def __init__(self, module: str = _CHILD_MODULE, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._module = module
        self._answer_seconds = answer_seconds
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None
        self._asking = False
        self._closed = False

    def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """One job, one answer. Raises `ChildDiedError` when the child ends, or has to be ended, instead."""
        self._asking = True
        try:
            return self._ask(job)
        finally:
            self._asking = False
            if self._closed:
                self._release()

    def _ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(2):
            process = self._running()
            if self._closed:  # just now, when there was nothing to kill yet
                process.kill()
            answer = self._exchange(process, json.dumps(job))
            if answer:
                result: Mapping[str, Any] = json.loads(answer)
                return result
            status = process.wait()
            if status != 0 and not self._closed:
                message = f"the compile child {_obituary(status)}{self._last_words()}"
                raise ChildDiedError(message, crashed=-status in _CRASHES)
            # Status 0: it went idle in the moment in which it was asked.
        raise ChildDiedError("the compile child does not stay")

    def close(self) -> None:
        """End the child, at work or not, and start no other. Any thread; idempotent."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()
        if not self._asking:  # else the pipes are still waited for: `ask` releases them
            self._release()

    def _running(self) -> subprocess.Popen[str]:
        if self._closed:
            raise ChildDiedError("compiling was stopped")
        if self._process is None or self._process.poll() is not None:
            self._release()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
            path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                start_new_session=True,  # an interrupt from the terminal is the server's to handle
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )
        return self._process

    def _exchange(self, process: subprocess.Popen[str], line: str) -> str:
        """The answer line; empty when the child is gone. Raises `ChildDiedError` when none comes in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self._answer_seconds):
                process.kill()
                process.wait()
                raise ChildDiedError(f"the compile child was ended: no answer in {self._answer_seconds:g} s")
        return process.stdout.readline()

    def _last_words(self) -> str:
        """The end of what the child wrote to standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 500))
        lines = self._errors.read().decode(errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({words})" if words else ""

    def _release(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # closing flushes, and nobody reads
                        pipe.close()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _obituary(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"died of {signal.Signals(-status).name}"
    except ValueError:
        return f"died of signal {-status}"


def _complaint(answer: Mapping[str, Any], model_file: Path | None = None) -> str:
    """What an answer complains of, with the file's name in it."""
    complaint = str(next(iter(answer.values())))
    return complaint if model_file is None or str(model_file) in complaint else f"{model_file}: {complaint}"
