"""Several simulated workers: the machine itself, and what it shows of each way of giving them requests."""

import pytest

from load_tests.workers.__main__ import SCENARIOS, WAYS, Packing, main, measure
from load_tests.workers.routers import RoundRobin
from load_tests.workers.run import Scenario, simulate

SHORT = {
    name: Scenario(**{**{f: getattr(s, f) for f in s.__slots__}, "seconds": 15.0, "warm": 3.0})
    for name, s in SCENARIOS.items()
}


def test_a_lone_request_takes_its_load_and_its_execution():
    scenario = Scenario("t", "one", workers=1, models=1, seconds=2.0, warm=0.0)
    outcome = simulate(scenario, 0.001, 3, RoundRobin(["w0"]))
    assert outcome.latencies[0] == pytest.approx(0.06 + 0.005)
    assert outcome.latencies[1] == pytest.approx(0.005)
    assert outcome.loads == 1


def test_what_waits_together_runs_together():
    scenario = Scenario("t", "one", workers=1, models=1, seconds=5.0, warm=0.0)
    outcome = simulate(scenario, 0.9, 1, RoundRobin(["w0"]))
    assert outcome.depth > 4
    assert outcome.imbalance == 1.0
    assert sum(outcome.busy) <= 5.1 + outcome.quantile(1.0)


@pytest.mark.parametrize("way", WAYS)
def test_every_request_is_answered(way):
    scenario = SHORT["hot"]
    counts = {name: len(measure(scenario, name, 0.3, [1]).latencies) for name in (way, "round_robin")}
    assert len(set(counts.values())) == 1


def test_where_weights_do_not_fit_packing_keeps_them_where_they_are():
    found = {way: measure(SHORT["tight"], way, 0.3, [1]) for way in ("round_robin", "least_outstanding", "lpt_packing")}
    assert found["lpt_packing"].loads < 0.2 * min(found["round_robin"].loads, found["least_outstanding"].loads)
    assert found["lpt_packing"].quantile(0.99) < 0.5 * found["round_robin"].quantile(0.99)


def test_with_fewer_models_than_workers_one_replica_leaves_workers_idle():
    found = {way: measure(SHORT["two"], way, 0.7, [1]) for way in ("least_outstanding", "lpt_packing")}
    assert found["lpt_packing"].imbalance > 1.9
    assert found["least_outstanding"].quantile(0.99) < 0.2 * found["lpt_packing"].quantile(0.99)


def test_models_are_placed_anew_as_the_traffic_shows_itself():
    packing = Packing(SHORT["hot"], "spread", 1)
    before = dict(packing.router.homes)
    simulate(SHORT["hot"], 0.4, 1, packing.router, packing.watch)
    assert packing.repacks > 0
    assert packing.router.homes != before


def test_the_table_has_a_line_for_every_way(capsys):
    assert main(["--scenario", "two", "--loads", "0.3", "--seeds", "1", "--seconds", "11"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{way} " in printed for way in WAYS)
