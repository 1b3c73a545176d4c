"""Makes the models of bundles that have a build file: once, in a child process, kept in the cache directory."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO

from app.domain.errors import BundleError
from app.repository.files import HOOKS_FILE, MANIFEST_FILE, MODEL_FILE, SAMPLE_FILE, bundle_files, digest_files
from app.repository.graph import describe

#: Seconds after which a build is taken to hang.
BUILD_SECONDS = 1800.0

#: Part of every key: raise it when build files are called otherwise.
_FORMAT = 1

#: Files of a bundle that are for the server: a change of one of them builds nothing anew.
_FOR_THE_SERVER = {HOOKS_FILE, MANIFEST_FILE, SAMPLE_FILE}

_CHILD = Path(__file__).with_name("build_child.py")

_log = logging.getLogger(__name__)


class Builder:
    """Builds one model at a time (loader thread); `close` is for any thread."""

    def __init__(self, cache_dir: Path, seconds: float = BUILD_SECONDS) -> None:
        self._built = cache_dir / "built"
        self._scratch = cache_dir / "building"  # not the compile cache's: that one removes what it does not know
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __call__(self, bundle_dir: Path, script: Path, source: Path) -> Path:
        """The ONNX file that a build file makes from a source; made before, unless either has changed since.

        Raises `BundleError` naming the build file.
        """
        try:
            product = self._built / _key(bundle_dir, script, source)
            if not (product / MODEL_FILE).is_file():
                self._build(script, source, product)
        except OSError as error:
            raise BundleError(
                f"{script}: what it builds cannot be kept ({error}): free some space, or name another place with "
                f"cache_dir"
            ) from error
        return product / MODEL_FILE

    def close(self) -> None:
        """End a build that is under way, which then raises `BundleError`, and begin no other. Idempotent."""
        self._closed = True
        if (process := self._process) is not None:
            _end(process)

    def _build(self, script: Path, source: Path, product: Path) -> None:
        _log.info("%s: building the model", script)
        self._scratch.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            self._run(script, source, workspace)
            try:
                describe(workspace / MODEL_FILE)
            except BundleError as error:
                fault = error.message.removeprefix(f"{workspace / MODEL_FILE}: ")
                raise BundleError(f"{script}: builds what cannot be served: {fault}") from error
            _publish(workspace, product)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)

    def _run(self, script: Path, source: Path, target: Path) -> None:
        with tempfile.TemporaryFile() as output:
            self._process = process = subprocess.Popen(
                # -P: what lies beside our own file is not what a build file means to import.
                [sys.executable, "-P", str(_CHILD), str(script), str(source), str(target)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # an interrupt from the terminal is the server's to handle
            )
            if self._closed:  # just now, when there was nothing to end yet
                _end(process)
            try:
                status = process.wait(self._seconds)
            except subprocess.TimeoutExpired:
                raise BundleError(
                    f"{script}: the build was ended: it took more than {self._seconds:g} s: build the model "
                    f"beforehand and name its path with the key file"
                ) from None
            finally:
                _end(process)
                self._process = None
            if self._closed:
                raise BundleError(f"{script}: the build was stopped")
            if status != 0:
                raise BundleError(f"{script}: the build failed ({_last_words(output, status)}): mend it")


def _key(bundle_dir: Path, script: Path, source: Path) -> str:
    """What a product depends on: what the bundle holds beside what is for the server, and a source elsewhere."""
    inputs = [(name, file) for name, file in bundle_files(bundle_dir) if name not in _FOR_THE_SERVER]
    if not source.is_relative_to(bundle_dir):
        inputs.append(("", source))
    facts = f"{_FORMAT}\0{script.name}\0{source.name}\0{digest_files(inputs)}"
    return sha256(os.fsencode(facts)).hexdigest()


def _publish(workspace: Path, product: Path) -> None:
    """Give a finished directory its name. Where another process was faster, its product is the one."""
    for _, file in bundle_files(workspace):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    product.parent.mkdir(parents=True, exist_ok=True)
    try:
        workspace.rename(product)
    except OSError:
        if not (product / MODEL_FILE).is_file():
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child, and what it has started itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(output: IO[bytes], status: int) -> str:
    """The last line that the child wrote, in which Python says what is wrong; else how it ended."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 2000))
    lines = [line.strip() for line in output.read().decode(errors="replace").split("\n") if line.strip()]
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return lines[-1][-500:] if lines else f"status {status}"
