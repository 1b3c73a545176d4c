"""Follows the model directories: what appears is loaded, what changes reloaded, what goes unloaded."""

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from app.domain.errors import ModelNotFound
from app.repository.files import readable_path
from app.repository.scan import Added, Change, Changed, Found, Removed, Renamed, Scan, diff, scan
from app.runtime.control import Control

logger = logging.getLogger(__name__)

Pending = concurrent.futures.Future[None]


class RepositoryWatcher:
    """One thread, named `watcher`. It loads the models of the start, then looks again every `poll_seconds`.

    `poll_seconds` None looks once. After the start a change counts when two looks saw the same files, so a bundle
    that is being copied waits. `on_started` is told the names of the start (dispatcher thread), before they load.
    A look that fails is logged and a problem of every directory, and is tried again. `named` are the names, or patterns
    of names, that settings speak of, by setting: one that no bundle has is a problem.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        include: Sequence[str],
        startup: Sequence[str],
        control: Control,
        *,
        poll_seconds: float | None,
        on_started: Callable[[Iterable[str]], None],
        named: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._roots = roots
        self._include = include
        self._startup = startup
        self._control = control
        self._poll_seconds = poll_seconds
        self._on_started = on_started
        self._named = named or {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._last = Scan({}, {})
        self._applied: dict[str, Found] = {}
        self._blind = False
        self.problems: dict[Path | str, str] = {}
        """What is wrong by path in the model directories, and by setting; swapped whole."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a load that runs is not waited for."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended, after the loader has."""
        if self._thread.ident is not None:
            self._thread.join()

    def find(self, name: str) -> Path:
        """Where the bundle of that name lies now (any thread but the event loop). Raises `ModelNotFound`."""
        found = self._look().bundles.get(name)
        if found is None:
            raise ModelNotFound(f"no bundle {name!r} in {', '.join(str(root) for root in self._roots)}")
        return found.path

    def first_look(self) -> list[Pending]:
        """Load the models of the start; the others are only announced."""
        self._last = self._look()
        self._applied = dict(self._last.bundles)
        names = [name for name in self._applied if _matches(name, self._startup)]
        self._blind = self._sees_nothing()
        if self._blind:
            logger.error("not ready: no model directory can be read: %s", ", ".join(map(str, self._last.problems)))
        self._control.announce(self._applied.keys() - names, names, _nobody if self._blind else self._on_started)
        return [self._control.load_model(name, self._applied[name].path) for name in names]

    def look_again(self) -> list[Pending]:
        """Carry out what changed and has been the same for two looks."""
        last, self._last = self._last, self._look(self._last)
        if self._blind and not self._sees_nothing():
            self._blind = False
            self._on_started(())
        settled = {
            name: found
            for name in self._last.bundles.keys() | self._applied.keys()
            if (found := self._settled(name, last)) is not None
        }
        pending = self._carry_out(diff(self._applied, settled))
        self._applied = settled
        return pending

    def _sees_nothing(self) -> bool:
        """Whether no model directory could be read: a wrong path, which must not look like a server without models."""
        return bool(self._roots) and not self._last.bundles and self._last.problems.keys() >= set(self._roots)

    def _settled(self, name: str, last: Scan) -> Found | None:
        now = self._last.bundles.get(name)
        return now if now == last.bundles.get(name) else self._applied.get(name)

    def _carry_out(self, changes: Sequence[Change]) -> list[Pending]:
        """Removals, then renames, then loads. What takes a name over replaces what had it, without a gap."""
        control = self._control
        renames = [change for change in changes if isinstance(change, Renamed)]
        kept = [change for change in renames if control.serves(change.name)]
        loads = [(change.name, change.path) for change in changes if isinstance(change, Added | Changed)]
        # One that does not serve, perhaps since it was renamed while it was read, has another try.
        loads += [(change.to, change.path) for change in renames if change not in kept]
        gone = {change.name for change in changes if isinstance(change, Removed | Renamed) and change not in kept}
        pending = [control.remove_model(name) for name in sorted(gone - {change.to for change in renames})]
        if kept:
            pending.append(control.rename_models([(change.name, change.to) for change in kept]))
        return pending + [control.load_model(name, path) for name, path in loads]

    def _look(self, previous: Scan | None = None) -> Scan:
        found = scan(self._roots, previous)
        warnings: dict[Path | str, str] = {
            path: fault
            for path, fault in found.passed_over.items()
            if previous is None or path in previous.passed_over  # else it may be a bundle that is being copied
        }
        if not found.problems.keys() & set(self._roots):
            warnings |= _unmatched(self._named, found.bundles)
        problems: dict[Path | str, str] = dict([*warnings.items(), *found.problems.items()])
        for place, fault in problems.items():
            if self.problems.get(place) != fault:
                logger.log(
                    logging.WARNING if place in warnings else logging.ERROR, "%s: %s", readable_path(place), fault
                )
        self.problems = problems
        bundles = {name: each for name, each in found.bundles.items() if _matches(name, self._include)}
        return Scan(bundles, found.problems, found.passed_over)

    def _run(self) -> None:
        look = self._start
        while True:
            try:
                look()
            except Exception as error:
                logger.exception("looking at the model directories failed")
                self.problems = dict.fromkeys(self._roots, f"a look failed, the log says where: {error!r}")
            else:
                look = self._follow
            if self._poll_seconds is None or self._stopping.wait(min(self._poll_seconds, threading.TIMEOUT_MAX)):
                return

    def _start(self) -> None:
        loads = self.first_look()
        concurrent.futures.wait(loads)
        failed = sum(load.cancelled() or load.exception() is not None for load in loads)
        waiting = self._control.waiting()
        for name, reason in waiting.items():
            logger.warning("model %s: %s", name, reason)
        logger.info("started: %d of %d models ready", len(loads) - failed - len(waiting), len(loads))

    def _follow(self) -> None:
        concurrent.futures.wait(self.look_again())


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _unmatched(named: Mapping[str, Iterable[str]], names: Collection[str]) -> dict[Path | str, str]:
    """What to say of names in settings that no bundle has; it may come later, so that is no error."""
    told: dict[Path | str, str] = {}
    for setting, patterns in named.items():
        for pattern in patterns:
            if pattern != "*" and not any(_matches(name, (pattern,)) for name in names):
                close = get_close_matches(pattern, names, n=1)
                meant = f": did you mean {close[0]!r}?" if close else ""
                told[f"{setting}: {pattern}"] = f"the model directories hold no such model{meant}"
    return told


def _nobody(_: Iterable[str]) -> None:
    """For what is not to be told."""
