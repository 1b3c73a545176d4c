"""How many requests one dispatch takes, at which compiled size; and how an oversized request is cut."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import Literal, NamedTuple

Sizing = Literal["fill", "cost", "value"]


class BatchPlan(NamedTuple):
    """The first `take` requests, `rows` rows in all, run at compiled batch size `size`."""

    take: int
    size: int
    rows: int


def plan_batch(
    rows: Sequence[int],
    sizes: Sequence[int],
    *,
    cap: int | None = None,
    sizing: Sizing = "fill",
    cost: Callable[[int], float | None] | None = None,
    chosen: int | None = None,
) -> BatchPlan:
    """Plan one dispatch over the leading run of requests with equal merge keys.

    `rows` are their row counts, front first, at least one; only as many as the largest size can hold are looked at.
    `sizes` are the compiled sizes, ascending, at least one. `cap` bounds the rows merged, never the compiled shape.
    `fill` aims at the largest size that the rows fill, `cost` at the least `cost(size)` per row (`fill` while a cost
    that it needs is None); `chosen` overrides both. Whatever is aimed at, the front is served: it grows the size, and
    a front above the cap goes alone. A front above every size goes alone with `size` = its rows: nothing holds it.
    """
    front = rows[0]
    if front > sizes[-1]:
        return BatchPlan(1, front, front)
    room = sizes[-1] if cap is None else min(cap, sizes[-1])
    if front >= room or len(rows) == 1:
        return BatchPlan(1, sizes[bisect_left(sizes, front)], front)
    sums = list(accumulate(rows))
    if chosen is None and sizing == "cost" and cost is not None:
        plan = _cheapest_per_row(sums, sizes, room, cost)
        if plan is not None:
            return plan
    target = chosen if chosen is not None else _largest_filled(min(sums[-1], room), sizes)
    return _prefix(sums, max(target, sizes[bisect_left(sizes, front)]), sizes, room)


def split_rows(rows: int, largest: int) -> list[int]:
    """Cut `rows` into pieces of at most `largest`: full ones first, the rest last. Both are at least 1."""
    full, rest = divmod(rows, largest)
    return [largest] * full + ([rest] if rest else [])


def _largest_filled(available: int, sizes: Sequence[int]) -> int:
    return sizes[max(bisect_right(sizes, available) - 1, 0)]


def _prefix(sums: Sequence[int], target: int, sizes: Sequence[int], room: int) -> BatchPlan:
    """The longest prefix of at most `target` rows, at the smallest size that holds it."""
    take = bisect_right(sums, min(target, room))
    taken = sums[take - 1]
    return BatchPlan(take, sizes[bisect_left(sizes, taken)], taken)


def _cheapest_per_row(
    sums: Sequence[int], sizes: Sequence[int], room: int, cost: Callable[[int], float | None]
) -> BatchPlan | None:
    """Of the prefixes the sizes allow, the one of least cost per row, larger on a tie; None if a cost is missing."""
    best, best_price = (0, 0, 0), inf
    take = 0
    for target in sizes[bisect_left(sizes, sums[0]) :]:
        before, take = take, bisect_right(sums, min(target, room))
        if take == before:
            continue  # what this size would add does not fit; otherwise it is the smallest that holds the prefix
        seconds = cost(target)
        if seconds is None:
            return None
        rows = sums[take - 1]
        if seconds / rows <= best_price:
            best, best_price = (take, target, rows), seconds / rows
    return BatchPlan(*best)
