"""When the server says that it is ready: once the models of the start are settled, until it drains or dies."""

from collections.abc import Iterable, Mapping

from app.runtime.registry import ModelEntry, ModelState

_SETTLED = (ModelState.READY, ModelState.UNAVAILABLE)


class Readiness:
    """Event loop only. One bad bundle never makes the server unready; a missing required model does, at the start."""

    def __init__(self, required: Iterable[str]) -> None:
        self._required = frozenset(required)
        self._expected: frozenset[str] | None = None
        self._reached = False
        self.draining = False

    def expect(self, names: Iterable[str]) -> None:
        """The models of the start are known (any thread: one assignment)."""
        self._expected = frozenset(names)

    def ready(self, entries: Mapping[str, ModelEntry], alive: bool) -> bool:
        """Whether load balancers should send requests here."""
        if self.draining or not alive:
            return False
        if not self._reached:
            self._reached = self._settled(entries)
        return self._reached

    def _settled(self, entries: Mapping[str, ModelEntry]) -> bool:
        expected = self._expected
        if expected is None:
            return False
        states = {name: entry.state for name, entry in entries.items()}
        return all(states.get(name) in _SETTLED for name in expected) and all(
            states.get(name) is ModelState.READY for name in self._required
        )
