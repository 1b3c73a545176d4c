"""r99: the highest offered rate at which at least 99 % of the requests are answered in time."""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import fmean

from load_tests.simulate.outcome import Outcome
from load_tests.simulate.rules import Rule
from load_tests.simulate.run import ORDINARY, Circumstances, arriving, replay
from load_tests.simulate.scenarios import Scenario

#: The part of the requests that may be missed.
MOST_MISSED = 0.01

#: Between which multiples of the nominal rate is searched, and how closely.
LEAST, MOST, CLOSE = 0.15, 2.2, 1.011


def highest(holds: Callable[[float], bool], least: float, most: float) -> float:
    """A rate that holds while 1 % more does not; 0 where not even `least` does, `most` where that does.

    Attainment need not fall steadily with the rate; where it crosses the limit several times, one crossing is found.
    """
    if not holds(least):
        return 0.0
    if holds(most):
        return most
    while most / least > CLOSE:
        middle = sqrt(least * most)
        if holds(middle):
            least = middle
        else:
            most = middle
    return least


def r99(
    scenario: Scenario, rule: Rule, seeds: Sequence[int], circumstances: Circumstances = ORDINARY
) -> tuple[float, float]:
    """(of all requests together, of every model), in requests per second; the mean of all seeds has to hold."""

    def holds(rate: float) -> bool:
        return attempt(scenario, rule, rate, seeds, circumstances) is not None

    def every_model_holds(rate: float) -> bool:
        outcomes = attempt(scenario, rule, rate, seeds, circumstances)
        return outcomes is not None and fmean([each.worst for each in outcomes]) >= 1 - MOST_MISSED

    every = highest(holds, scenario.rate * LEAST, scenario.rate * MOST)
    if len(scenario.models) == 1 or not every:
        return every, every
    return every, highest(every_model_holds, scenario.rate * LEAST, every)


def attempt(
    scenario: Scenario, rule: Rule, rate: float, seeds: Sequence[int], circumstances: Circumstances
) -> list[Outcome] | None:
    """The outcome of each seed; None, which comes quickly, when on average more than 1 % of the requests are missed."""
    left = MOST_MISSED * len(seeds)
    outcomes = []
    for seed in seeds:
        traffic = arriving(scenario, rate, seed)
        count = max(len(traffic[0]), 1)
        outcomes.append(replay(scenario, rule, traffic, seed, circumstances, most_missed=left * count))
        left -= outcomes[-1].missed / count
        if left < 0:
            return None
    return outcomes
