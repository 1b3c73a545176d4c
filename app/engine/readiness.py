"""When the server says that it is ready: once the models of the start are settled, until it drains or dies."""

import logging
from collections.abc import Iterable, Mapping

from app.runtime.registry import ModelEntry, ModelState

logger = logging.getLogger(__name__)


class Readiness:
    """Event loop only. One bad bundle never makes the server unready; a missing required model does, at the start."""

    def __init__(self, required: Iterable[str]) -> None:
        self._required = frozenset(required)
        self._expected: frozenset[str] | None = None
        self._reached = False
        self.draining = False

    def expect(self, names: Iterable[str]) -> None:
        """The models of the start are known and have a state (any thread: one assignment)."""
        self._expected = frozenset(names)
        if missing := sorted(self._required - self._expected):
            logger.warning("not ready before these required models are loaded: %s", ", ".join(missing))

    def ready(self, entries: Mapping[str, ModelEntry], alive: bool) -> bool:
        """Whether load balancers should send requests here."""
        if self.draining or not alive:
            return False
        if not self._reached:
            self._reached = self._settled(entries)
        return self._reached

    def _settled(self, entries: Mapping[str, ModelEntry]) -> bool:
        """Whether no model of the start is still loading and all required ones serve.

        One that is gone again, or has another name by now, keeps nobody waiting.
        """
        expected = self._expected
        if expected is None:
            return False
        states = {name: entry.state for name, entry in entries.items()}
        return all(states.get(name) is not ModelState.LOADING for name in expected) and all(
            states.get(name) is ModelState.READY for name in self._required
        )
