"""Ends workers that run and do not work, so that they are started again.

One whose dispatcher has died, or whose device is lost, says so at `/v2/health/live` for as long as it is asked. For a
server alone that is for whoever started it; the workers of a node were started by the node.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping
from typing import Protocol

from app.scaleout.fleet import Fleet

logger = logging.getLogger(__name__)

#: Seconds between two looks, and those that a worker has to answer.
EVERY_SECONDS, PATIENCE = 10.0, 5.0

#: Looks in a row at which one that was live was not, before it is ended.
MOST_MISSED = 3


class Process(Protocol):
    """What there is to know of the process of a worker, and its successors."""

    starts: int

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the one that runs."""


class Pulse:
    """The looks at one worker. What was never live since its start is still starting."""

    def __init__(self) -> None:
        self._start = 0
        self._missed: int | None = None

    def lost(self, start: int, *, live: bool) -> bool:
        """Note a look at the process of that `start`; whether it was the last that is waited for."""
        if start != self._start:
            self._start, self._missed = start, None
        if live:
            self._missed = 0
        elif self._missed is not None:
            self._missed += 1
        return self._missed is not None and self._missed >= MOST_MISSED


async def watch(fleet: Fleet, processes: Mapping[str, Process]) -> None:
    """Look at every worker, by its name, until cancelled."""
    pulses = {name: Pulse() for name in processes}
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        starts = {name: process.starts for name, process in processes.items()}
        for name, answer in (await fleet.ask_all("/v2/health/live", seconds=PATIENCE)).items():
            if processes[name].starts == starts[name] and pulses[name].lost(starts[name], live=answer.ok):
                logger.error("%s is not live (%s): it is ended", name, answer.text or f"answers {answer.status}")
                processes[name].signal(signal.SIGKILL)
