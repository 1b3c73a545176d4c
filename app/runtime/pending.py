"""A queued request with what the dispatcher needs to serve it: its tensors and whom to tell."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from app.domain.errors import Cancelled, DeadlineExceeded, ServingError
from app.domain.model import MergeKey
from app.domain.tensors import Tensors
from app.scheduling.request import QueuedRequest


@dataclass(frozen=True, slots=True)
class DispatchFacts:
    """What is known of one execution, shared by all of its requests. Monotonic instants and spans, in seconds."""

    started_at: float
    load_seconds: float
    """What the weight load took that its first request waited for; 0 where it waited for none."""
    compute_seconds: float
    rows: int
    size: int

    @property
    def ended_at(self) -> float:
        """When the execution had ended, but for the time that its assembly took."""
        return self.started_at + self.compute_seconds


class Part(NamedTuple):
    """The answer to one queued request: its own rows of the outputs."""

    outputs: Tensors
    facts: DispatchFacts


#: The loop's side awaits the first kind, meta threads wait on the second.
PartFuture = asyncio.Future[Part] | concurrent.futures.Future[Part]


class PendingRequest(QueuedRequest):
    """`inputs` are valid executable tensors of `rows` rows; `future` is resolved once, by the one winner.

    Whoever takes the request out of its queue under the lock answers it: the dispatcher by popping it, the event
    loop by withdrawing it.
    """

    __slots__ = ("future", "inputs")

    def __init__(
        self,
        model_id: str,
        merge_key: MergeKey,
        rows: int,
        enqueued_at: float,
        deadline: float,
        inputs: Tensors,
        future: PartFuture,
        committed: bool = False,
    ) -> None:
        # By hand and by position: a generated keyword constructor takes twice as long, once per request.
        self.model_id = model_id
        self.merge_key = merge_key
        self.rows = rows
        self.enqueued_at = enqueued_at
        self.deadline = deadline
        self.committed = committed
        self.queued = False
        self.due = inf
        self.place = 0
        self.inputs = inputs
        self.future = future


def threaded_future() -> concurrent.futures.Future[Part]:
    """A future for a caller that waits on a thread of its own: see `wait`."""
    return concurrent.futures.Future()


def wait(request: PendingRequest) -> Part:
    """Wait for the answer to a request with a threaded future (not the event loop).

    Raises what the request failed with, and `Cancelled` when its future was cancelled.
    """
    future = request.future
    assert isinstance(future, concurrent.futures.Future)
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise Cancelled("nobody waits for the answer any more") from None


def deliver(requests: Sequence[PendingRequest], results: Sequence[Part | ServingError]) -> None:
    """Resolve the futures of one dispatch (dispatcher thread): the event loop is woken once for all of them."""
    on_loop: list[tuple[asyncio.Future[Part], Part | ServingError]] = []
    for request, result in zip(requests, results, strict=True):
        future = request.future
        if isinstance(future, concurrent.futures.Future):
            _settle_threaded(future, result)
        else:
            on_loop.append((future, result))
    if on_loop:
        try:
            on_loop[0][0].get_loop().call_soon_threadsafe(_settle, on_loop)
        except RuntimeError:
            # The loop is closed: nobody is left to read the answers.
            return


def fail(requests: Sequence[PendingRequest], error: ServingError) -> None:
    """Fail every request with an error of its own, equal to `error` (a shared one would grow a shared traceback)."""
    deliver(requests, [type(error)(error.message, reason=error.code) for _ in requests])


def refuse_late(requests: Sequence[PendingRequest], now: float, name_of: Callable[[str], str]) -> None:
    """Answer what the scheduler dropped: its time was up, or it could not have been done in time.

    `name_of` tells the name of a model by its id.
    """
    deliver(requests, [_lateness(request, now, name_of(request.model_id)) for request in requests])


def _lateness(request: PendingRequest, now: float, name: str) -> DeadlineExceeded:
    queued = f"{(now - request.enqueued_at) * 1e3:.1f} ms"
    if request.due <= now:
        return DeadlineExceeded(f"the deadline passed while the request was queued for model {name!r}, for {queued}")
    return DeadlineExceeded(
        f"model {name!r} could not answer by the deadline: after {queued} in the queue "
        f"{(request.due - now) * 1e3:.1f} ms were left for its execution, which may take longer",
        reason="infeasible_dispatch",
    )


def _settle(outcomes: Sequence[tuple[asyncio.Future[Part], Part | ServingError]]) -> None:
    for future, result in outcomes:
        if future.done():  # the caller was answered at its deadline, or went away
            continue
        if isinstance(result, ServingError):
            future.set_exception(result)
        else:
            future.set_result(result)


def _settle_threaded(future: concurrent.futures.Future[Part], result: Part | ServingError) -> None:
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(result, ServingError):
        future.set_exception(result)
    else:
        future.set_result(result)
