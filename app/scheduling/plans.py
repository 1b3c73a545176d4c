"""What is planned for the front of a queue: the dispatch it would get, and where value decides, what it could offer."""

from typing import NamedTuple


class Plan(NamedTuple):
    """The dispatch that the front of a queue would get now."""

    variant: str
    take: int
    size: int
    rows: int
    cost: float | None
    """Learned seconds of this (variant, size); None while unseeded."""
    oldest_enqueued_at: float
    """Of the front request."""
    run_rows: int
    """Rows of the leading run with one merge key, as far as was looked."""
    closed: bool
    """Whether no ordinary request that arrives later could change this plan."""
    last: float
    """The largest place that was looked at: one behind it may leave without a change, where the plan is closed."""


class Offer(NamedTuple):
    """The best that a queue could do with the device now, where value decides."""

    size: int | None
    """The compiled size aimed at; None leaves it to the planner."""
    late: int
    """How many of its requests would be late."""
    starts_by: float
    """When it must begin, for the most urgent of the others."""
    cost: float
    """Expected seconds on the device, weight load included."""
    value: float
    """Net worth of the answers in time, per second."""


class Menu(NamedTuple):
    """What the front of a queue may be run at, where value decides. Seconds are learned ones, without weight load."""

    variant: str
    sizes: tuple[int, ...]
    """Compiled sizes, ascending; empty where there is no choice."""
    seconds: tuple[float, ...]
    """Of each size."""
    rates: tuple[float, ...]
    """Most rows per second of each size and those below it."""
    most: int
    """Most rows of one dispatch."""
