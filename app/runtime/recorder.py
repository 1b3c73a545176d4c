"""Writes what arrived to files, one JSON line a request, so that it can be played again."""

import json
import logging
import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

#: What arrived within so many seconds is written together.
EVERY_SECONDS = 1.0

#: A file holds an eighth of what may be kept: the oldest go one by one.
FILES = 8

#: Arrivals that are written between two looks at the size of the file: about a megabyte.
AT_ONCE = 10_000

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
    """Appends to files of this start of the process, on a thread of its own. `add` is for the event loop.

    All files of arrivals in the directory, those of earlier starts too, have about `max_bytes`: the oldest go.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Make the directory and the first file. Raises `OSError` where they cannot be written."""
        self._max_bytes = max_bytes
        directory.mkdir(parents=True, exist_ok=True)
        self.path = self._begin(directory)
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
        for at in range(0, len(waiting), AT_ONCE):
            try:
                self._append(waiting[at : at + AT_ONCE])
            except OSError:
                self.lost += len(waiting) - at
                raise

    def _append(self, arrivals: Sequence[Arrival]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines([json.dumps(each._asdict()) + "\n" for each in arrivals])
            full = file.tell() >= self._max_bytes // FILES
        if full:
            self.path = self._begin(self.path.parent)

    def _begin(self, directory: Path) -> Path:
        """A new file, and room for it."""
        path = directory / f"arrivals-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.jsonl"
        path.touch(mode=0o600)
        *older, _ = sorted(directory.glob("arrivals-*.jsonl"))
        sizes = {file: file.stat().st_size for file in older}
        excess = sum(sizes.values()) - self._max_bytes * (FILES - 1) // FILES
        for file in older:
            if excess <= 0:
                break
            file.unlink()
            excess -= sizes[file]
        return path
