"""Makers and a virtual clock for tests of the scheduler: one device, costs that are what they are."""

from hypothesis import HealthCheck, settings

from app.domain.config import ModelPolicy, SchedulerConfig
from app.scheduling.request import QueuedRequest
from app.scheduling.scheduler import Scheduler
from tests.builders import request, spec

#: Timing is no subject of these tests: a loaded machine must not fail them.
PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))


def scheduler(*models, policies=None, background_loads=False, **config):
    """A scheduler with these models (names or specs); the model id is the name. Admission is off unless asked for."""
    made: Scheduler[QueuedRequest] = Scheduler(
        SchedulerConfig(**{"admission": "off", **config}), background_loads=background_loads
    )
    for each in models or ("m",):
        model = spec(each) if isinstance(each, str) else each
        made.add_model(model.name, model, (policies or {}).get(model.name, ModelPolicy()))
    return made


def seed(made, model, costs, variant="default"):
    for size, seconds in costs.items():
        made.seed_cost(model, variant, size, seconds, 0.0)


def push(made, *requests, now=0.0):
    """Enqueue each on its own, as separate clients do."""
    for each in requests:
        made.enqueue([each], now)
    return requests


def burst(count, model="m", now=0.0, **facts):
    return [request(model, enqueued_at=now, **facts) for _ in range(count)]


def served(decision):
    return list(decision.dispatch.requests) if decision.dispatch else []


class Device:
    """Runs what the scheduler decides, one dispatch after another, on a clock of its own."""

    def __init__(self, made, seconds):
        """`seconds(dispatch)` is the true cost of a dispatch."""
        self.made = made
        self.seconds = seconds
        self.now = 0.0
        self.used = {}
        self.longest_gap = {}
        self._since = {}

    def contend(self, model, count=1, **facts):
        """Queue `count` one-row requests that arrive now."""
        self.made.enqueue(burst(count, model, self.now, **facts), self.now)
        self._since.setdefault(model, self.now)

    def step(self):
        """One decision and, if there is one, its dispatch. The model that ran, or None."""
        dispatch = self.made.next_decision(self.now).dispatch
        if dispatch is None:
            return None
        model = dispatch.model_id
        self.longest_gap[model] = max(self.longest_gap.get(model, 0.0), self.now - self._since.pop(model, self.now))
        spent = self.seconds(dispatch)
        self.now += spent
        self.used[model] = self.used.get(model, 0.0) + spent
        self.made.record(dispatch, spent, self.now)
        if self.made._queues[model].depth:
            self._since[model] = self.now
        return model

    def share(self, model):
        return self.used.get(model, 0.0) / sum(self.used.values())
