"""Who gets a request: the cases that were written down before the code, by number, and what holds of all of them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.workers.routers import BoundedHash, LeastOutstanding, Placed, RoundRobin

TWO = ["w0", "w1"]


def router(mode="run", workers=TWO, quantum=8, **options):
    return Placed(workers, {"m": workers, **options.pop("homes", {})}, {"m": quantum}, mode=mode, **options)


def sent(one, count, items=1, model="m"):
    return [one.choose(model, items) for _ in range(count)]


def closed_loop(one, concurrency, steps=400, workers=TWO):
    """So many clients, of which the longest waiting is answered first: requests of each worker, and workers at work."""
    open_requests: list[str] = []
    counts, busy = dict.fromkeys(workers, 0), []
    for _ in range(steps):
        if len(open_requests) == concurrency:
            one.done(open_requests.pop(0), "m", 1)
        worker = one.choose("m", 1)
        open_requests.append(worker)
        counts[worker] += 1
        busy.append(len(set(open_requests)))
    return counts, sum(busy) / steps


@pytest.mark.parametrize("quantum", [8, 12])
def test_fill_002_a_run_goes_to_one_replica_until_its_quantum_is_spent(quantum):
    assert sent(router(quantum=quantum), quantum + 1) == ["w0"] * quantum + ["w1"]


def test_fill_003_a_run_ends_when_nothing_is_in_flight():
    one, chosen = router(), []
    for _ in range(4):
        chosen += sent(one, 1)
        one.done(chosen[-1], "m", 1)
    assert chosen == ["w0", "w1", "w0", "w1"]


def test_fill_004_a_quantum_is_of_items():
    one = router(quantum=32)
    assert one.choose("m", 32) == "w0"
    assert one.held["m", "w0"] == 32
    assert one.choose("m", 1) == "w1"
    one = router(quantum=32)
    assert [one.choose("m", items) for items in (16, 8, 8, 1)] == ["w0", "w0", "w0", "w1"]
    assert sent(router(quantum=32), 33) == ["w0"] * 32 + ["w1"]


def test_fill_005_whoever_has_room_is_next():
    one = router()
    sent(one, 16)
    for _ in range(3):
        one.done("w1", "m", 1)
    assert one.choose("m", 1) == "w1"


@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("mode", ["run", "spread"])
@pytest.mark.parametrize("concurrency", [1, 2, 4, 7, 8, 9, 16, 24])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_fill_006_in_a_closed_loop_every_replica_gets_its_part(mode, least, concurrency, count):
    workers = [f"w{number}" for number in range(count)]
    counts, _ = closed_loop(router(mode, workers, least=least), concurrency, workers=workers)
    assert all(each > 0 and abs(each - 400 / count) <= 8 for each in counts.values()), counts


@pytest.mark.parametrize(
    ("mode", "concurrency", "counts"),
    [("run", 2, [200, 200])]
    + [("inflight", concurrency, [400, 0]) for concurrency in range(2, 9)]
    + [("inflight", 9, [356, 44]), ("inflight", 16, [200, 200])],
)
def test_fill_007_filling_by_what_is_in_flight_parks_below_its_quantum(mode, concurrency, counts):
    """As `balance first` with `maxconn` does, on purpose."""
    assert list(closed_loop(router(mode), concurrency)[0].values()) == counts


def test_fill_008_a_run_keeps_fewer_replicas_at_work():
    assert closed_loop(router("spread"), 4)[1] > 1.99
    assert 1 <= closed_loop(router("run"), 4)[1] <= 1.5


def test_fill_009_spreading_counts_items():
    one = router("spread")
    first = one.choose("m", 32)
    others = sent(one, 2)
    assert len({first, *others}) == 2
    assert len(set(others)) == 1


def dear(basis, costs):
    """A dear model has 8 items on `w0`; `m` comes with 32."""
    one = router(quantum=32, basis=basis, least=True, costs=costs, homes={"dear": ["w0"]})
    one.choose("dear", 8)
    assert one.choose("m", 32) == "w1"
    return one


@pytest.mark.parametrize(
    ("basis", "costs", "backed"),
    [
        ("compute", {"dear": 1.0, "m": 0.01}, (8, Fraction(32, 100))),
        ("items", {}, (8, 32)),
        ("requests", {"dear": 8.0, "m": 0.32}, (8, Fraction(32, 100))),
    ],
)
def test_fill_010_a_worker_is_backed_up_by_the_work_of_all_models(basis, costs, backed):
    one = dear(basis, costs)
    assert (one.backed["w0"], one.backed["w1"]) == backed
    one.done("w0", "dear", 8)
    one.done("w1", "m", 32)
    assert set(one.backed.values()) == {0}


def test_fill_010_by_requests_size_does_not_count():
    one = router(basis="requests", costs={"m": 0.32})
    one.choose("m", 1)
    one.choose("m", 1000)
    assert one.backed["w0"] == Fraction(64, 100)


def test_fill_011_by_requests_each_adds_its_models_cost():
    one = router(quantum=64, basis="requests", least=True, costs={"hot": 10.0, "m": 1.0}, homes={"hot": ["w0"]})
    one.choose("hot", 1)
    assert sent(one, 2, items=32) == ["w1", "w1"]
    assert one.backed["w1"] == 2


def test_fill_012_a_cold_model_costs_what_models_cost_on_average():
    one = router(costs={"a": 1.0, "b": 3.0})
    one.choose("m", 3)
    assert one.backed["w0"] == 6


@pytest.mark.parametrize("least", [False, True])
def test_fill_013_bursts_are_shared_evenly_and_leave_nothing_behind(least):
    workers = ["w0", "w1", "w2", "w3"]
    one, counts = router(workers=workers, quantum=32, least=least, costs={"m": 0.00326}), dict.fromkeys(workers, 0)
    for _ in range(16):
        burst = sent(one, 8, items=31)
        for worker in burst:
            counts[worker] += 1
            one.done(worker, "m", 31)
        assert set(one.backed.values()) == {0}
        assert set(one.held.values()) == {0}
    assert counts == dict.fromkeys(workers, 32)


def test_fill_014_a_model_on_one_worker_counts_too_and_a_stranger_goes_to_each_in_turn():
    one = router(homes={"single": ["w1"]}, costs={"single": 2.0})
    assert one.choose("single", 3) == "w1"
    assert one.backed["w1"] == 6
    assert sent(one, 4, model="unknown") == ["w0", "w1", "w0", "w1"]


def test_fill_016_whoever_fails_is_followed_by_its_fellows_and_then_by_all_others():
    workers = ["w0", "w1", "w2", "w3"]
    one = Placed(workers, {"m": ["w0", "w1", "w2"], "n": ["w1"]}, costs={"m": 1.0, "n": 1.0})
    one.choose("n", 5)
    assert one.failover("m", "w0") == ["w0", "w2", "w1", "w3"]


def test_lpt_034_what_is_in_flight_counts_after_a_repack_and_a_run_ends():
    one = Placed(["w0", "w1", "w2"], {"m": ["w0", "w1"]}, {"m": 8}, mode="run")
    assert sent(one, 9) == ["w0"] * 8 + ["w1"]
    one.place({"m": ["w1", "w2"]})
    assert one.held["m", "w1"] == 1
    assert set(sent(one, 16)) == {"w1", "w2"}
    assert (one.held["m", "w0"], one.held["m", "w1"] + one.held["m", "w2"]) == (8, 17)


@given(st.sampled_from(["run", "spread"]), st.booleans(), st.integers(1, 12), st.integers(2, 4), st.data())
def test_every_replica_gets_traffic_at_every_concurrency(mode, least, quantum, count, data):
    concurrency = data.draw(st.integers(1, 3 * quantum))
    workers = [f"w{number}" for number in range(count)]
    one = router(mode, workers, quantum, least=least)
    counts, _ = closed_loop(one, concurrency, steps=40 * quantum, workers=workers)
    assert all(counts.values())


# what HAProxy does by itself


def test_round_robin_and_least_outstanding_are_what_they_are_called():
    assert sent(RoundRobin(TWO), 4) == ["w0", "w1", "w0", "w1"]
    one = LeastOutstanding(["w0", "w1", "w2"])
    assert sent(one, 3) == ["w0", "w1", "w2"]
    one.done("w1", "m", 1)
    assert sent(one, 1) == ["w1"]


def test_a_bounded_hash_keeps_a_model_at_home_while_that_is_not_overrun():
    one = BoundedHash([f"w{number}" for number in range(4)])
    home = one.choose("m", 1)
    one.done(home, "m", 1)
    assert one.choose("m", 1) == home
    assert len(set(sent(one, 20))) == 4
