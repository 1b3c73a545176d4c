"""r99: the highest offered rate at which at least 99 % of the requests are answered in time."""

from collections.abc import Callable, Sequence
from math import sqrt

from load_tests.simulate.outcome import Outcome, pooled
from load_tests.simulate.rules import Rule
from load_tests.simulate.run import ORDINARY, Circumstances, arriving, replay
from load_tests.simulate.scenarios import Scenario

#: The part of the requests that may be missed.
MOST_MISSED = 0.01

#: Between which multiples of the nominal rate is searched, and how closely.
LEAST, MOST, CLOSE = 0.1, 2.5, 1.01


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
    """(of all requests together, of every model), over all seeds together, in requests per second."""

    def holds(rate: float) -> bool:
        return attempt(scenario, rule, rate, seeds, circumstances) is not None

    def every_model_holds(rate: float) -> bool:
        outcome = attempt(scenario, rule, rate, seeds, circumstances)
        return outcome is not None and outcome.worst >= 1 - MOST_MISSED

    every = highest(holds, scenario.rate * LEAST, scenario.rate * MOST)
    if len(scenario.models) == 1 or not every:
        return every, every
    return every, highest(every_model_holds, scenario.rate * LEAST, every)


def attempt(
    scenario: Scenario, rule: Rule, rate: float, seeds: Sequence[int], circumstances: Circumstances
) -> Outcome | None:
    """The outcome over all seeds; None, which comes quickly, when more than 1 % of all requests are missed."""
    traffic = [arriving(scenario, rate, seed) for seed in seeds]
    left = MOST_MISSED * sum(len(times) for times, _ in traffic)
    outcomes = []
    for seed, each in zip(seeds, traffic, strict=True):
        outcome = replay(scenario, rule, each, seed, circumstances, most_missed=left)
        left -= outcome.missed
        if left < 0:
            return None
        outcomes.append(outcome)
    return pooled(outcomes)
