"""One simulation: arrivals meet a device until all is answered or dropped."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from app.scheduling.request import QueuedRequest
from load_tests.arrivals import Arriving, merged
from load_tests.simulate.device import Device, Noise
from load_tests.simulate.models import SimulatedModel
from load_tests.simulate.outcome import Outcome, outcome
from load_tests.simulate.rules import Rule
from load_tests.simulate.scenarios import Scenario

#: Always backlogged: so many batches of the largest size are queued, of every model.
BACKLOG = 2


class Circumstances(NamedTuple):
    """What is the same for all that is compared: how true times scatter, and what loading does to them."""

    noise: Noise | None = None
    """None for what the scenario says."""
    drag: float = 1.0
    """So many times as long takes an execution that begins while weights are loaded in the background."""


#: Times scatter as the scenario says, and loads cost executions nothing.
ORDINARY = Circumstances()


class OpenLoop:
    """Requests that arrive at their time, whatever became of those before; and their deadlines, in order."""

    def __init__(self, requests: Sequence[QueuedRequest]) -> None:
        self._requests = requests
        order = np.argsort([each.deadline for each in self._requests], kind="stable")
        self._by_deadline = [self._requests[place] for place in order]
        self._arrived = self._expired = 0

    @property
    def next_at(self) -> float:
        """The instant of the next arrival; infinite after the last."""
        return self._requests[self._arrived].enqueued_at if self._arrived < len(self._requests) else inf

    def deliver(self, device: Device, until: float) -> None:
        """Let everything happen that happens up to and including an instant, in order of time."""
        while (at := self.next_at) <= until:
            self._expire(device, at)
            device.offer(self._requests[self._arrived], at)
            self._arrived += 1
        self._expire(device, until)

    def _expire(self, device: Device, until: float) -> None:
        ordered = self._by_deadline
        while self._expired < len(ordered) and (at := ordered[self._expired].deadline) <= until:
            device.expire(ordered[self._expired], at)
            self._expired += 1


def serve(device: Device, traffic: OpenLoop, most_missed: float = inf) -> None:
    """Run until nothing is left to happen, or more than `most_missed` requests were not answered in time."""
    while device.missed <= most_missed:
        at = device.turn()
        if device.running is not None:
            traffic.deliver(device, at)
            device.finish(at)
            continue
        at = min(at, traffic.next_at)
        if at == inf:
            return
        device.now = max(device.now, at)
        traffic.deliver(device, device.now)


def serve_backlogged(device: Device, models: Sequence[SimulatedModel], seconds: float) -> None:
    """Run for so long with `BACKLOG` full batches of every model queued at each decision, and no deadlines."""
    by_name = {model.name: model for model in models}
    for model in models:
        for _ in range(BACKLOG * model.sizes[-1]):
            device.offer(model.request(0.0), 0.0)
    while device.now < seconds:
        end = device.turn()
        running = device.running
        assert running is not None
        device.finish(end)
        for _ in running.requests:
            device.offer(by_name[running.model_id].request(end), end)


def simulate(
    scenario: Scenario, rule: Rule, rate: float, seed: int, circumstances: Circumstances = ORDINARY
) -> Outcome:
    """One scenario at a total rate of requests per second, under one rule. Equal arguments, equal outcome."""
    if scenario.arrivals == "backlogged":
        device = _device(scenario, rule, seed, circumstances)
        serve_backlogged(device, scenario.models, scenario.seconds)
        return outcome(device, scenario.models, scenario.seconds)
    return replay(scenario, rule, arriving(scenario, rate, seed), seed, circumstances)


def arriving(scenario: Scenario, rate: float, seed: int) -> Arriving:
    """The arrivals of a scenario in open loop, at a total rate."""
    return merged(scenario.arrivals, scenario.rates(rate), scenario.seconds, seed)


def replay(
    scenario: Scenario,
    rule: Rule,
    arriving: Arriving,
    seed: int = 0,
    circumstances: Circumstances = ORDINARY,
    *,
    most_missed: float = inf,
) -> Outcome:
    """Given arrivals, under one rule; given up as soon as more than `most_missed` were not answered in time."""
    models, (times, owners) = scenario.models, arriving
    requests = [models[owner].request(time) for time, owner in zip(times.tolist(), owners.tolist(), strict=True)]
    return answer(scenario, rule, requests, seed, circumstances, most_missed=most_missed)


def answer(
    scenario: Scenario,
    rule: Rule,
    requests: Sequence[QueuedRequest],
    seed: int = 0,
    circumstances: Circumstances = ORDINARY,
    *,
    most_missed: float = inf,
) -> Outcome:
    """Given requests, in order of arrival, under one rule; given up likewise."""
    device = _device(scenario, rule, seed, circumstances)
    serve(device, OpenLoop(requests), most_missed)
    return outcome(device, scenario.models, scenario.seconds)


def _device(scenario: Scenario, rule: Rule, seed: int, circumstances: Circumstances) -> Device:
    noise, drag = circumstances
    noise = Noise(scenario.scatter) if noise is None else noise
    return Device(scenario.models, rule, scenario.room, noise=noise, drag=drag, seed=seed)
