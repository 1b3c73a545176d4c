"""When requests arrive: pure generators, for open loop. The same generator state gives the same pattern at any rate."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Times = NDArray[np.float64]

#: To which model each arrival belongs, by its place in the scenario.
Owners = NDArray[np.int64]

Arriving = tuple[Times, Owners]

#: (requests per second, seconds, generator) → the instants below `seconds`, ascending.
Arrivals = Callable[[float, float, Generator], Times]

#: On/off bursts: the shortest burst, the tail exponent of what exceeds it, the mean pause per length of the burst
#: before it, and how often there is a pause at all.
BURST_SECONDS, BURST_TAIL, PAUSE_RATIO, PAUSE_CHANCE = 0.12, 1.8, 2.0, 0.7


def steady(rate: float, seconds: float, rng: Generator) -> Times:
    """Evenly spaced, from a random phase."""
    times = (np.arange(int(rate * seconds) + 1, dtype=np.float64) + rng.random()) / rate
    return times[times < seconds]


def poisson(rate: float, seconds: float, rng: Generator) -> Times:
    """Independent arrivals."""
    return _renewal(rng.standard_exponential, rate, seconds)


def gamma(rate: float, seconds: float, rng: Generator, *, cv: float = 4.0) -> Times:
    """Gaps of a gamma distribution; the coefficient of variation `cv` is 1 for Poisson, more for clumps."""
    shape = cv**-2
    return _renewal(lambda count: rng.standard_gamma(shape, count) / shape, rate, seconds)


def bursts(rate: float, seconds: float, rng: Generator) -> Times:
    """On and off by turns, on for a heavy-tailed time; the mean over all `seconds` is exactly `rate`."""
    pieces: list[tuple[float, float]] = []
    begin = 0.0
    while begin < seconds:
        length = BURST_SECONDS * (1.0 + rng.pareto(BURST_TAIL))
        pieces.append((begin, min(begin + length, seconds)))
        begin += length
        if rng.random() < PAUSE_CHANCE:
            begin += rng.exponential(PAUSE_RATIO * length)
    begins, ends = np.array(pieces).T
    busy = np.concatenate(([0.0], np.cumsum(ends - begins)))  # time in bursts before each
    at = np.sort(rng.random(round(rate * seconds))) * busy[-1]
    burst = np.searchsorted(busy, at, side="right") - 1
    times: Times = begins[burst] + at - busy[burst]
    return times


ARRIVALS: Mapping[str, Arrivals] = MappingProxyType(
    {"steady": steady, "poisson": poisson, "gamma4": partial(gamma, cv=4.0), "bursts": bursts}
)


def merged(kind: str, rates: Sequence[float], seconds: float, seed: int) -> Arriving:
    """The arrivals of several models, in order. Each has its own generator, by seed and place."""
    make = ARRIVALS[kind]
    each = [make(rate, seconds, np.random.default_rng([seed, place])) for place, rate in enumerate(rates)]
    times = np.concatenate(each)
    owners = np.repeat(np.arange(len(each)), [len(some) for some in each])
    order = np.argsort(times, kind="stable")
    return times[order], owners[order]


def _renewal(gaps: Callable[[int], Times], rate: float, seconds: float) -> Times:
    """Sums of gaps of mean 1, stretched to the rate, up to `seconds`."""
    parts: list[Times] = []
    end = 0.0
    while end < rate * seconds:
        parts.append(end + np.cumsum(gaps(int(rate * seconds) + 16)))
        end = float(parts[-1][-1])
    times = np.concatenate(parts or [np.zeros(0)]) / rate
    return times[times < seconds]
