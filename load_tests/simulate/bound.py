"""How much any scheduler could answer in time at the most, even one that knew every arrival beforehand."""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from load_tests.arrivals import Times
from load_tests.simulate.capacity import MOST_MISSED, highest
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.run import arriving
from load_tests.simulate.scenarios import Scenario

#: Bounds lie so many times above the nominal rate at most.
MOST_RATE = 6.0


def r99_bound(scenario: Scenario, seeds: Sequence[int]) -> float:
    """A rate that no rule's r99 exceeds, over all seeds together."""

    def holds(rate: float) -> bool:
        offered = sum([len(arriving(scenario, rate, seed)[0]) for seed in seeds])
        return sum([most_in_time(scenario, rate, seed) for seed in seeds]) >= (1 - MOST_MISSED) * offered

    return highest(holds, 0.1 * scenario.rate, MOST_RATE * scenario.rate)


def most_in_time(scenario: Scenario, rate: float, seed: int) -> int:
    """Answers in time that no scheduler exceeds: exact for one model, for several those of a divisible device."""
    times, owners = arriving(scenario, rate, seed)
    if len(scenario.models) == 1:
        return _best_plan(scenario.models[0], times)
    shares = [_least_shares(model, times[owners == place]) for place, model in enumerate(scenario.models)]
    cheapest = np.cumsum(np.sort(np.concatenate(shares)))
    longest = max(model.deadline_ms for model in scenario.models) / 1e3
    return int(np.searchsorted(cheapest, scenario.seconds + longest, side="right"))


def _seconds(model: SimulatedModel) -> list[float]:
    """Of a batch of 0, 1, 2 … requests at the smallest compiled size that holds it."""
    largest = model.sizes[-1]
    return [inf] + [model.seconds(next(s for s in model.sizes if s >= rows)) for rows in range(1, largest + 1)]


def _best_plan(model: SimulatedModel, times: Times) -> int:
    """The most requests of one model that can be in time: by dynamic programming over arrivals.

    All have the same budget, so that the best batches are runs of consecutive arrivals, in order: of the first so many
    arrivals, `ends[n]` is the earliest instant at which n of them can all be answered.
    """
    seconds, budget = _seconds(model), model.deadline_ms / 1e3
    start = np.full(1, -inf)
    ends: list[NDArray[np.float64]] = [start]
    for last, arrival in enumerate(times.tolist(), 1):
        now = np.concatenate((ends[last - 1], np.full(len(seconds), inf)))
        for rows in range(1, min(len(seconds) - 1, last) + 1):
            due = times[last - rows] + budget
            if arrival + seconds[rows] > due:
                break
            end = np.maximum(ends[last - rows], arrival) + seconds[rows]
            end[end > due] = inf
            served = now[rows : rows + len(end)]
            np.minimum(served, end, out=served)
        finite = int(np.flatnonzero(now < inf)[-1])
        ends.append(now[: finite + 1])
        if last >= len(seconds):
            ends[last - len(seconds)] = start  # never looked at again
    return len(ends[-1]) - 1


def _least_shares(model: SimulatedModel, times: Times) -> NDArray[np.float64]:
    """The least device time each request can cost: its part of the cheapest batch that it could belong to in time."""
    least = np.full(len(times), inf)
    for rows, seconds in enumerate(_seconds(model)[1:], 1):
        slack = model.deadline_ms / 1e3 - seconds
        if slack < 0 or rows > len(times):
            break
        first = np.flatnonzero(times[rows - 1 :] - times[: len(times) - rows + 1] <= slack)
        member = np.zeros(len(times) + 1)
        np.add.at(member, first, 1)
        np.add.at(member, first + rows, -1)
        possible = np.cumsum(member)[:-1] > 0
        least[possible] = np.minimum(least[possible], seconds / rows)
    return least
