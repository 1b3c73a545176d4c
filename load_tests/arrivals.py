"""When requests arrive: pure generators, for open loop. The same generator state gives the same pattern at any rate.

Simulation and load generator share them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Times = NDArray[np.float64]

#: To which model each arrival belongs, by its place in the scenario.
Owners = NDArray[np.int64]

Arriving = tuple[Times, Owners]

#: Seconds, and requests per second at the beginning and at the end.
Phase = tuple[float, float, float]

#: (requests per second, seconds, generator) → the instants below `seconds`, ascending.
Arrivals = Callable[[float, float, Generator], Times]

#: On/off bursts: the shortest burst, the tail exponent of what exceeds it, the mean pause per length of the burst
#: before it, and how often there is a pause at all.
BURST_SECONDS, BURST_TAIL, PAUSE_RATIO, PAUSE_CHANCE = 0.12, 1.8, 2.0, 0.7

#: The part of the time that bursts are taken to fill, where their density does not depend on what they do fill.
BURST_PART = 0.45


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
    begins, ends = np.array([(begin, min(begin + length, seconds)) for begin, length in _turns(seconds, rng)]).T
    busy = np.concatenate(([0.0], np.cumsum(ends - begins)))  # time in bursts before each
    at = np.sort(rng.random(round(rate * seconds))) * busy[-1]
    burst = np.searchsorted(busy, at, side="right") - 1
    times: Times = begins[burst] + at - busy[burst]
    return times


def interrupted(rate: float, seconds: float, rng: Generator) -> Times:
    """An interrupted Poisson process: such bursts, each equally dense; the mean is `rate` at most, mostly less."""
    parts = [
        begin + np.sort(rng.random(rng.poisson(length * rate / BURST_PART))) * length
        for begin, length in _turns(seconds, rng)
    ]
    times = np.concatenate(parts)
    most = round(rate * seconds)
    if most < len(times):
        times = np.sort(rng.choice(times, most, replace=False))
    return times[times < seconds]


def phases(pieces: Sequence[Phase], rng: Generator) -> Times:
    """Independent arrivals at a rate that changes: one phase after the other, in each evenly from one rate to another.

    A phase is (seconds, requests per second at its beginning, at its end).
    """
    spans = np.array(pieces, np.float64).reshape(-1, 3)
    if np.any(spans < 0):
        raise ValueError("neither a phase nor a rate is negative")
    spans = spans[spans[:, 0] > 0]
    if not len(spans):
        return np.zeros(0)
    lengths, first, last = spans.T
    begins = np.concatenate(([0.0], np.cumsum(lengths)))
    before = np.concatenate(([0.0], np.cumsum(lengths * (first + last) / 2)))  # arrivals expected until each begins
    at = _renewal(rng.standard_exponential, 1.0, float(before[-1]))
    piece = np.minimum(np.searchsorted(before, at, side="right") - 1, len(spans) - 1)
    count, start = at - before[piece], first[piece]
    slope = (last[piece] - start) / lengths[piece]
    # count = start · t + slope · t² / 2, solved without a difference of like numbers
    root = np.sqrt(np.maximum(start**2 + 2 * slope * count, 0.0))
    into = np.divide(2 * count, start + root, out=np.zeros_like(count), where=start + root > 0)
    times: Times = np.minimum(begins[piece] + into, np.nextafter(begins[-1], 0.0))
    return times


def ramp(rate: float, seconds: float, rng: Generator, *, begin: float = 0.1, end: float = 1.9) -> Times:
    """From `begin` to `end` times the rate, evenly: with these two its mean is `rate`."""
    return phases([(seconds, begin * rate, end * rate)], rng)


def surge(rate: float, seconds: float, rng: Generator, *, factor: float = 4.0, at: float = 0.5) -> Times:
    """Independent arrivals, and from the part `at` of the time on, for a fifth of it, `factor` times as many."""
    burst = min(0.2, 1.0 - at) * seconds
    quiet = at * seconds
    return phases(
        [(quiet, rate, rate), (burst, factor * rate, factor * rate), (seconds - quiet - burst, rate, rate)], rng
    )


ARRIVALS: Mapping[str, Arrivals] = MappingProxyType(
    {
        "steady": steady,
        "poisson": poisson,
        "gamma4": partial(gamma, cv=4.0),
        "bursts": bursts,
        "interrupted": interrupted,
        "ramp": ramp,
        "surge": surge,
    }
)


def merged(kind: str, rates: Sequence[float], seconds: float, seed: int) -> Arriving:
    """The arrivals of several models, in order. Each has its own generator, by seed and place."""
    make = ARRIVALS[kind]
    each = [make(rate, seconds, np.random.default_rng([seed, place])) for place, rate in enumerate(rates)]
    times = np.concatenate(each)
    owners = np.repeat(np.arange(len(each)), [len(some) for some in each])
    order = np.argsort(times, kind="stable")
    return times[order], owners[order]


def _turns(seconds: float, rng: Generator) -> Iterator[tuple[float, float]]:
    """When each burst begins and how long it is; the last may end later than `seconds`."""
    begin = 0.0
    while begin < seconds:
        length = BURST_SECONDS * (1.0 + rng.pareto(BURST_TAIL))
        pause = rng.exponential(PAUSE_RATIO * length) if rng.random() < PAUSE_CHANCE else 0.0
        yield begin, length
        begin += length + pause


def _renewal(gaps: Callable[[int], Times], rate: float, seconds: float) -> Times:
    """Sums of gaps of mean 1, stretched to the rate, up to `seconds`."""
    parts: list[Times] = []
    end = 0.0
    while end < rate * seconds:
        parts.append(end + np.cumsum(gaps(int(rate * seconds) + 16)))
        end = float(parts[-1][-1])
    times = np.concatenate(parts or [np.zeros(0)]) / rate
    return times[times < seconds]
