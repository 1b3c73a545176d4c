"""One simulated device under the real scheduler: it runs what is decided, for as long as that truly takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from app.domain.errors import DeadlineInfeasible, QueueFull
from app.scheduling.decision import Dispatch
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from load_tests.simulate.models import VARIANT, SimulatedModel
from load_tests.simulate.residency import AllResident
from load_tests.simulate.rules import Rule


class Noise(NamedTuple):
    """How far true times scatter about the cost: a lognormal `spread`, and `outliers` (a part) that take 3 ×."""

    spread: float = 0.0
    outliers: float = 0.0


#: Every execution takes what it costs.
EXACT = Noise()

#: Factors drawn ahead, and used in turn.
_DRAWN = 4096


def _factors(noise: Noise, seed: int) -> list[float]:
    if not any(noise):
        return [1.0]
    rng = np.random.default_rng([seed, 0x6E6F6973])
    factors = np.exp(rng.normal(0.0, noise.spread, _DRAWN))
    factors[rng.random(_DRAWN) < noise.outliers] *= 3.0
    drawn: list[float] = factors.tolist()
    return drawn


@dataclass(slots=True)
class Tally:
    """What became of the requests of one model that were run; the scheduler counts those that it dropped."""

    arrived: int = 0
    in_time: int = 0
    late: int = 0
    latencies: list[float] = field(default_factory=list)
    busy: float = 0.0
    """Device seconds, weight loads that the device waited for included."""
    waited: float = 0.0
    """Of those, the loads."""
    hits: int = 0
    """Requests that found the weights on the device when they arrived."""


class Device:
    """The clock, the device and its scheduler. `turn` begins at most one execution, `finish` ends it.

    What arrives in between is offered in between, so that the scheduler sees it while the device is busy.
    """

    def __init__(
        self,
        models: Sequence[SimulatedModel],
        rule: Rule,
        room: int = 0,
        *,
        noise: Noise = EXACT,
        drag: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.missed = 0
        """Requests that were refused, dropped or answered late."""
        kind = rule.residency if room else AllResident
        self.scheduler: Scheduler[QueuedRequest] = Scheduler(
            rule.config, background_loads=kind.background_loads, rule=rule.value
        )
        self.tallies = {model.name: Tally() for model in models}
        self._models = {model.name: model for model in models}
        self._factors = _factors(noise, seed)
        self._drag = drag
        self._runs = 0
        self._load_seconds = 0.0
        self.running: Dispatch[QueuedRequest] | None = None
        """The execution in progress."""
        for model in models:
            policy = rule.policy.model_copy(update={"weight": model.weight})
            self.scheduler.add_model(model.name, model.spec(), policy)
            for size in model.sizes:
                self.scheduler.seed_cost(model.name, VARIANT, size, model.seconds(size), 0.0)
        self.residency = kind(self.scheduler, models, room)

    def offer(self, request: QueuedRequest, now: float) -> None:
        """A request arrives; it is queued or refused."""
        tally = self.tallies[request.model_id]
        tally.arrived += 1
        tally.hits += self.residency.memory.held[request.model_id].resident
        try:
            self.scheduler.enqueue([request], now)
        except (QueueFull, DeadlineInfeasible):
            self.missed += 1

    def expire(self, request: QueuedRequest, now: float) -> None:
        """A deadline passes: as the server's timers do, take the request out, busy or not."""
        if request.queued:
            self.scheduler.withdraw([request], now)
            self.missed += 1

    def turn(self) -> float:
        """Let the scheduler decide. The end of what then runs; with nothing to run, when to decide again."""
        wake_at = self.residency.tend(self.now)
        decision = self.scheduler.next_decision(self.now)
        self.missed += len(decision.expired)
        dispatch = decision.dispatch
        if dispatch is None:
            return min(wake_at, decision.wake_at)
        model = self._models[dispatch.model_id]
        self.running = dispatch
        self._load_seconds = model.load_ms / 1e3 if self.residency.acquire(model.name, self.now) else 0.0
        factor = self._factors[self._runs % len(self._factors)]
        factor *= 1.0 if self.residency.loading is None else self._drag
        self._runs += 1
        return self.now + self._load_seconds + model.seconds(dispatch.size) * factor

    def finish(self, end: float) -> None:
        """The execution ends at `end`: answer its requests, and tell the scheduler what it cost."""
        dispatch = self.running
        assert dispatch is not None
        begin = self.now + self._load_seconds
        tally = self.tallies[dispatch.model_id]
        tally.busy += end - self.now
        tally.waited += self._load_seconds
        self.running, self.now = None, end
        self.residency.memory.use(dispatch.model_id, end)
        if self._load_seconds:
            self.scheduler.record_load(dispatch.model_id, self._load_seconds, end)
        in_time = len([request for request in dispatch.requests if request.deadline >= end])
        tally.in_time += in_time
        tally.late += len(dispatch.requests) - in_time
        self.missed += len(dispatch.requests) - in_time
        tally.latencies += [end - request.enqueued_at for request in dispatch.requests]
        self.scheduler.record(dispatch, end - begin, end)
