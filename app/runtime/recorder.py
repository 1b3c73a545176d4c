"""Writes what arrived to a file, one JSON line a request, so that it can be played again."""

import json
import logging
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

#: What arrived within so many seconds is written together.
EVERY_SECONDS = 1.0

#: Arrivals that may wait for a slow disk; those beyond are lost, and counted.
MOST_WAITING = 1_000_000


class Arrival(NamedTuple):
    """One request. `time` is seconds since 1970, `timeout` the seconds it allowed, None for no deadline."""

    time: float
    model: str
    rows: int | None
    """None where the request was refused before anybody counted."""
    timeout: float | None
    outcome: str
    """`ok`, or the code of the error."""


class Recorder:
    """Appends to one file per start of the process, on a thread of its own. `add` is for the event loop."""

    def __init__(self, directory: Path) -> None:
        """Make the directory and the file. Raises `OSError` where they cannot be written."""
        self.path = directory / f"arrivals-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(mode=0o600)
        self.lost = 0
        self._waiting: deque[Arrival] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def add(self, arrival: Arrival) -> None:
        """Have it written, soon."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(arrival)
        else:
            self.lost += 1

    def stop(self) -> None:
        """Write what is left."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.lost:
            logger.warning("%d arrivals were not recorded", self.lost)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(EVERY_SECONDS)
            try:
                self._write()
            except OSError as error:
                logger.error("arrivals are not recorded: %s", error)

    def _write(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not waiting:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines([json.dumps(each._asdict()) + "\n" for each in waiting])
        except OSError:
            self.lost += len(waiting)
            raise
