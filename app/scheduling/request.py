"""The only facts about a request that scheduling may see."""

from dataclasses import dataclass, field
from math import inf

from app.domain.model import MergeKey


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedRequest:
    """One request, or one piece of a split one.

    `model_id` is opaque and minted per loaded generation of a bundle. `rows` ≥ 1. `enqueued_at` and `deadline` are
    monotonic seconds. `committed` marks a meta model's continuation, which is served before the discipline chooses.

    `queued`, `due` and `place` belong to the scheduler, everyone else only reads them: whether the request waits in a
    queue (cleared where it stands on withdrawal, which is what makes that O(1), so that a withdrawn request must never
    be enqueued again), the deadline less the reserve, and the number of its arrival at its queue.
    """

    model_id: str
    merge_key: MergeKey
    rows: int
    enqueued_at: float
    deadline: float = inf
    committed: bool = False
    queued: bool = field(default=False, init=False)
    due: float = field(default=inf, init=False)
    place: int = field(default=0, init=False)
