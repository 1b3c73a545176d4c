"""How models are kept where they belong, with workers and a proxy that only note what they are told."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from app.domain.config import ClusterConfig
from app.domain.errors import InvalidRequest, ModelNotFound
from app.scaleout.controller import Controller
from app.scaleout.fleet import Fleet
from app.scaleout.joining import ClusterError
from app.scaleout.policies import changed_policy, changed_replicas, described
from app.scaleout.proxy import ProxyError
from app.scaleout.workers import Worker
from tests.scaleout.test_joining import model, status

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@dataclass
class Stage:
    """Two workers, a proxy, and the clock."""

    config: dict[str, object] = field(default_factory=dict)
    statuses: dict[str, Any] = field(default_factory=dict)
    commands: list[Any] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    slow: bool = False
    broken: bool = False
    now: float = 0.0

    def __post_init__(self):
        workers = [Worker("w0", "w0", "cpu", 1), Worker("w1", "w1", "cpu", 2)]
        self.serve("a", "b")
        self.fleet = Fleet(workers, "secret", httpx.MockTransport(self.answer))
        config = ClusterConfig(mode="lpt_packing", poll_seconds=1000, **self.config)
        self.controller = Controller(self.fleet, self, config, lambda: self.now)

    def serve(self, *names, pool=0, **busy):
        """Both workers have these models; `busy` are the device seconds that each counted."""
        for worker in ("w0", "w1"):
            self.statuses[worker] = {
                **status(*names), "weight_pool_bytes": pool, "device_busy_seconds": busy.get(worker, 0.0),
            }  # fmt: skip

    def answer(self, request):
        name = f"w{request.url.port - 1}"
        assert request.headers["authorization"] == "Bearer secret"
        if request.method == "POST":
            self.commands.append((name, request.url.path, json.loads(request.content)))
            return httpx.Response(200, text="{}")
        if self.slow:
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200, text=json.dumps(self.statuses[name]))

    async def tell(self, routes):
        if self.broken:
            raise ProxyError("gone")
        self.told.append((len(self.commands), dict(routes.models)))

    async def started(self):
        """The controller at work, its first placement made."""
        self.task = asyncio.ensure_future(self.controller.run())
        while self.controller.placement is None:
            await asyncio.sleep(0)
            if self.task.done():
                self.task.result()
        return self.controller


@pytest.fixture
async def stage():
    made = []

    def make(**config):
        made.append(Stage(config))
        return made[-1]

    yield make
    for each in made:
        each.task.cancel()
        await asyncio.gather(each.task, return_exceptions=True)
        await each.fleet.close()


async def test_at_the_start_models_are_placed_by_their_weights(stage):
    one = stage()
    await one.started()
    assert one.told == [(0, {"a": "on_w0", "b": "on_w1"})]
    assert one.commands == []


async def test_a_model_is_on_its_new_worker_before_requests_go_there(stage):
    one = stage()
    controller = await one.started()
    await controller.change(changed_replicas(controller, "a", "all"), controller.fills)
    assert one.commands == [("w1", "/admin/prefetch", {"models": ["a"]})]
    assert one.told[-1] == (1, {"a": "pool", "b": "on_w1"})


@pytest.mark.parametrize(("mode", "reload"), [("eager", []), ("scheduled", ["b"])])
async def test_lpt_033_the_old_worker_is_compacted_at_the_next_look(stage, mode, reload):
    one = stage(compaction=mode, default_replicas=2)
    controller = await one.started()
    await controller.change(changed_replicas(controller, "a", 1), controller.fills)
    compacted = ("w1", "/admin/compact", {"reload": reload})
    assert compacted not in one.commands
    await controller.repack()
    assert one.commands == [compacted]


async def test_lpt_033_nothing_is_compacted_where_it_is_off(stage):
    one = stage(default_replicas=2)
    controller = await one.started()
    await controller.change(changed_replicas(controller, "a", 1), controller.fills)
    await controller.repack()
    assert one.commands == []


async def test_lpt_030_what_the_fleet_computed_makes_it_time(stage):
    one = stage(first_rebalance_compute_seconds=5, rebalance_compute_seconds=20)
    controller = await one.started()
    await controller.repack()  # what operators ask for takes nothing from the first budget
    one.serve("a", "b", w0=3.0, w1=1.0)
    assert not await controller.look()
    one.serve("a", "b", w0=3.0, w1=2.0)
    assert await controller.look()
    one.serve("a", "b", w0=0.0, w1=21.0)  # one has started again
    assert not await controller.look()
    one.serve("a", "b", w0=1.0, w1=21.0)
    assert await controller.look()


async def test_demand_is_learned_from_what_workers_count(stage):
    one = stage()
    controller = await one.started()
    busy = [model("a", accepted=50, ok=50, compute_seconds=5.0), model("b", accepted=10, ok=10, compute_seconds=1.0)]
    one.serve(*busy, w0=5.0)
    one.now = 10.0
    await controller.repack()
    loads = {name: each["load"] for name, each in described(controller)["models"].items()}
    assert loads == {"a": pytest.approx(2 * 5 * 0.1), "b": pytest.approx(2 * 1 * 0.1)}  # both workers count as much


async def test_lpt_031_another_pace_of_repacks_is_another_pace_of_learning(stage):
    one = stage(rebalance_compute_seconds=120)
    controller = await one.started()
    asked = model("a", accepted=50, ok=50, compute_seconds=5.0)
    one.serve(asked, model("b"))
    one.now = 10.0
    await controller.look()
    await controller.change(*changed_policy(controller, {"rebalance_compute_seconds": 5}))
    one.serve(asked, model("b", accepted=1, ok=1, compute_seconds=2.5))
    one.now = 20.0
    await controller.repack()
    assert described(controller)["models"]["a"]["load"] == pytest.approx(0.5 * 10 * 0.1)


async def test_a_round_in_which_nobody_answers_forgets_no_demand(stage):
    one = stage()
    controller = await one.started()
    one.serve(model("a", accepted=50, ok=50, compute_seconds=5.0), "b", w0=5.0)
    one.now = 10.0
    await controller.look()
    one.slow = True
    await controller.look()
    one.slow = False
    await controller.repack()
    assert described(controller)["models"]["a"]["load"] == pytest.approx(1.0)


async def test_a_worker_that_is_silent_gets_no_models(stage):
    one = stage()
    controller = await one.started()
    one.statuses["w1"] = {}
    await controller.repack()
    assert one.told[-1][1] == {"a": "on_w0", "b": "on_w0"}


async def test_lpt_032_models_that_some_workers_lack_are_told(stage):
    one = stage()
    controller = await one.started()
    one.statuses["w1"]["models"] = [model("b")]
    await controller.repack()
    assert one.told[-1][1]["a"] == "on_w0"
    assert described(controller)["warnings"] == ["model a has drifted: not all ready workers have it"]


async def test_lpt_023_too_many_weights_are_told_each_time(stage):
    one = stage()
    controller = await one.started()
    one.serve("a", "b", "c", pool=10)
    for _ in range(2):
        await controller.repack()
        assert described(controller)["warnings"] == ["worker w0 was given 14 bytes of weights and has room for 10"]


async def test_lpt_040_after_three_rounds_without_an_answer_in_time_it_ends(stage):
    one = stage()
    controller = await one.started()
    one.slow = True
    for _ in range(2):
        await controller.look()
    one.slow = False
    await controller.look()
    one.slow = True
    for _ in range(2):
        await controller.look()
    with pytest.raises(ClusterError, match="no worker has told its status in 3 rounds"):
        await controller.look()


async def test_lpt_040_it_ends_also_where_an_operator_made_it_look(stage):
    one = stage()
    controller = await one.started()
    one.slow = True
    for _ in range(2):
        await controller.repack()
    with pytest.raises(ClusterError):
        await controller.repack()
    with pytest.raises(ClusterError):
        await one.task


async def test_a_proxy_that_was_gone_is_told_again(stage):
    one = stage()
    controller = await one.started()
    one.broken = True
    await controller.change(changed_replicas(controller, "a", 2), controller.fills)
    one.broken = False
    await controller.tell_again()
    assert one.told[-1][1]["a"] == "pool"


async def test_a_proxy_that_starts_anew_is_told_until_it_has_heard(stage, monkeypatch):
    """It does not listen yet when its process has just been started."""
    monkeypatch.setattr("app.scaleout.controller.TELL_AGAIN_SECONDS", 0.001)
    one = stage()
    controller = await one.started()
    one.broken = True
    await controller.tell_again()
    assert len(one.told) == 1
    one.broken = False
    while len(one.told) == 1:
        await asyncio.sleep(0)
    await controller.repack()
    assert [models for _, models in one.told] == [{"a": "on_w0", "b": "on_w1"}] * 3


async def test_a_caller_that_goes_away_ends_nothing_but_its_own_wait(stage):
    one = stage()
    controller = await one.started()
    gone = asyncio.ensure_future(controller.repack())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(controller.repack(), 30)
    assert controller.repacks == 3


async def test_what_may_be_changed_is_validated_and_names_what_is_wrong(stage):
    controller = await stage().started()
    with pytest.raises(InvalidRequest, match="no such setting: 'mode'; known are: default_replicas"):
        changed_policy(controller, {"mode": "round_robin"})
    with pytest.raises(InvalidRequest, match=r"no such setting: 'hysteresis\.a'"):
        changed_policy(controller, {"hysteresis.a": 0.5})
    with pytest.raises(InvalidRequest, match="hysteresis: Input should be less than 1"):
        changed_policy(controller, {"hysteresis": 2})
    with pytest.raises(InvalidRequest, match=r"replicas\.a"):
        changed_replicas(controller, "a", 0)
    with pytest.raises(ModelNotFound, match="nobody"):
        changed_policy(controller, {"fill.nobody": "fill"})
    with pytest.raises(InvalidRequest):
        changed_policy(controller, {})


async def test_fill_015_a_model_gets_its_own_way_and_gives_it_back(stage):
    one = stage(default_replicas=2)
    controller = await one.started()
    await controller.change(*changed_policy(controller, {"fill.a": "fill", "quantum_factor.a": 2}))
    assert one.told[-1][1] == {"a": "fill_0", "b": "pool"}
    assert controller.routes.groups["fill_0"].quantum == 16
    await controller.change(*changed_policy(controller, {"fill.a": "", "hysteresis": 0.5}))
    assert one.told[-1][1] == {"a": "pool", "b": "pool"}
    assert controller.config.hysteresis == 0.5
    assert controller.fills.factors == {"a": 2.0}
