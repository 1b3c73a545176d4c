"""Brings a bundle from its directory to `Prepared`, on a thread of its own, never on the dispatcher's time."""

import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from app.backends.base import Backend, CacheEntry, Prepared
from app.domain.errors import Unsupported
from app.repository.bundle import Bundle, load_bundle

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PreparedBundle:
    """A bundle whose sessions stand, and the compile-cache entry they were made from."""

    bundle: Bundle
    entry: CacheEntry
    prepared: Prepared


class Loader:
    """One thread, named `loader_0`: loads follow one another, so that they take one core from serving, not all."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="loader")

    def submit(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Run a job on the loader thread (any thread)."""
        return self._executor.submit(job, *args, **kwargs)

    def prepare(self, path: Path) -> PreparedBundle:
        """Read, compile and map a bundle (loader thread). Raises `BundleError`."""
        bundle = load_bundle(path)
        if bundle.model_file is None:
            raise Unsupported(f"{path}: meta models are not served by this version")
        entry = self._backend.compile(bundle.model_file, bundle.spec)
        return PreparedBundle(bundle, entry, self._backend.prepare(entry, bundle.spec))

    def stop(self) -> None:
        """Drop what has not begun and join the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
