"""The latest executions, as facts, and the time that all of them took: for who asks what happened just now."""

from collections import deque
from typing import NamedTuple

from app.runtime.executor import Outcome
from app.runtime.pending import PendingRequest
from app.scheduling.scheduler import Dispatch

#: So many dispatches, and so many requests, are remembered.
REMEMBERED = 10_000


class RanDispatch(NamedTuple):
    """One execution. Instants are monotonic; everything is in seconds."""

    began_at: float
    model_id: str
    variant: str
    size: int
    rows: int
    requests: int
    waited: float
    """What its first request waited in the queue, assembly included."""
    gap: float
    """How long the device was idle before it while it was wanted."""
    seconds: float
    code: str | None
    """Of the error it failed with."""


class DispatchLog:
    """The dispatcher thread writes, any thread reads."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        """Time in which the device executed, failures included."""
        self._ran: deque[RanDispatch] = deque(maxlen=REMEMBERED)

    def ran(self, dispatch: Dispatch[PendingRequest], outcome: Outcome, gap: float) -> None:
        """Remember one execution."""
        error, began_at = outcome.error, outcome.begun_at
        self.busy_seconds += outcome.ended_at - began_at
        self._ran.append(
            RanDispatch(
                began_at,
                dispatch.model_id,
                dispatch.variant,
                dispatch.size,
                dispatch.rows,
                len(dispatch.requests),
                began_at - dispatch.requests[0].enqueued_at,
                gap,
                outcome.seconds,
                None if error is None else error.code,
            )
        )

    def latest(self, most: int = REMEMBERED) -> list[RanDispatch]:
        """Oldest first."""
        return list(self._ran)[-most:]
