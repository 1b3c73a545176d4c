"""Placement by longest processing time: the cases that were written down before the code, by number."""

from fractions import Fraction

import pytest

from app.scaleout.placement import Demand, Placement, Rules, changed_workers, overfull, place, replica_count

GB = 10**9


def fleet(count, budget=0):
    return {f"w{number}": budget for number in range(count)}


def demands(loads, nbytes=None):
    nbytes = nbytes or {}
    return {model: Demand(load, int(nbytes.get(model, 0) * GB)) for model, load in loads.items()}


def before(**homes):
    return Placement({model: tuple(workers.split(",")) for model, workers in homes.items()})


def homes(placement):
    return {model: ",".join(workers) for model, workers in placement.homes.items()}


def test_lpt_001_the_heaviest_goes_first_to_whoever_is_least_loaded():
    placed = place(demands({"a": 0.5, "b": 0.4, "c": 0.1}), fleet(2), Rules(), before(gone="w0"))
    assert homes(placed) == {"a": "w0", "b": "w1", "c": "w1"}
    assert placed.weights("a") == {"w0": 1}


def test_lpt_002_replicas_stand_on_distinct_workers_and_share_compute_but_not_weights():
    placed = place(demands({"a": 0.9}, {"a": 6}), fleet(3), Rules(default_replicas=2))
    assert homes(placed) == {"a": "w0,w1"}
    assert placed.weights("a") == {"w0": Fraction(1, 2), "w1": Fraction(1, 2)}
    assert placed.loads == {"w0": Fraction(45, 100), "w1": Fraction(45, 100), "w2": 0}
    assert placed.nbytes == {"w0": 6 * GB, "w1": 6 * GB, "w2": 0}


def test_lpt_002_replicas_are_chosen_by_the_share_that_each_would_carry():
    """With all of `m` on each, `w0` would be fuller than `w1`, whose memory is what fills it."""
    asked = demands({"hot": 0.5, "big": 0.41, "m": 0.4}, {"big": 7.5, "m": 0.5, "hot": 0.5})
    assert homes(place(asked, fleet(3, 10 * GB), Rules(replicas={"m": 2})))["m"] == "w0,w2"


def test_lpt_003_the_number_of_replicas_is_what_was_asked_for_whatever_the_load():
    rules = Rules(default_replicas=2, replicas={"nine": 9, "everywhere": "all", "one": 1})
    placed = place(demands({"nine": 0.1, "everywhere": 0.1, "one": 1.5, "other": 0.1}), fleet(3), rules)
    assert {model: len(workers) for model, workers in placed.homes.items()} == {
        "nine": 3, "everywhere": 3, "one": 1, "other": 2,
    }  # fmt: skip
    assert replica_count(0, 3) == 1


def test_lpt_004_order_is_by_compute_then_memory_then_name():
    placed = place(demands({"b": 0.5, "a": 0.5, "c": 0.5}, {"c": 1, "a": 0.5, "b": 0.5}), fleet(3), Rules())
    assert homes(placed) == {"c": "w0", "a": "w1", "b": "w2"}


def test_lpt_004_a_worker_is_as_full_as_its_compute_or_its_memory_whichever_is_more():
    loads, nbytes = {"heavy": 0.5, "big": 0.3, "third": 0.05}, {"big": 6}
    assert homes(place(demands(loads, nbytes), fleet(2, 10 * GB), Rules()))["third"] == "w0"
    assert homes(place(demands(loads, nbytes), fleet(2, -1), Rules()))["third"] == "w1"


@pytest.mark.parametrize(("budget", "third"), [(10, "w0"), (0, "w1"), (1000, "w1")])
def test_lpt_005_memory_counts_where_it_is_short(budget, third):
    asked = demands({"a": 0.6, "b": 0.5, "c": 0.1}, {"a": 1, "b": 9, "c": 9})
    # With 10 GB, `c` has room on `w0` as well, where it would be 1.0 full.
    assert homes(place(asked, fleet(2, budget * GB), Rules())) == {"a": "w0", "b": "w1", "c": third}


def test_lpt_006_cold_models_stand_apart_by_their_weights():
    placed = place(demands(dict.fromkeys("abc", 0.0), dict.fromkeys("abc", 6)), fleet(3, 10 * GB), Rules())
    assert sorted(placed.homes.values()) == [("w0",), ("w1",), ("w2",)]


def test_cold_models_do_not_crowd_on_the_first_worker_where_memory_has_no_bound():
    placed = place(demands(dict.fromkeys("abcd", 0.0), dict.fromkeys("abcd", 1)), fleet(2), Rules())
    assert sorted(placed.nbytes.values()) == [2 * GB, 2 * GB]


# hysteresis


def test_lpt_010_a_model_stays_where_another_worker_is_no_better():
    assert homes(place(demands({"a": 0.5}), fleet(2), Rules(hysteresis=0.1), before(a="w1"))) == {"a": "w1"}


@pytest.mark.parametrize("hysteresis", [0.1, 0.0])
def test_lpt_011_what_shares_a_worker_with_a_hot_model_moves(hysteresis):
    placed = place(demands({"hot": 0.7, "a": 0.3}), fleet(2), Rules(hysteresis=hysteresis), before(hot="w1", a="w1"))
    assert homes(placed) == {"hot": "w1", "a": "w0"}


@pytest.mark.parametrize(("load", "stays"), [(0.1, True), (0.11, False)])
def test_lpt_012_it_stays_up_to_the_hysteresis_and_no_further(load, stays):
    """`w1` is 1.0 + load full with it, `w0` exactly 1.0."""
    asked = demands({"big": 1.0, "other": 1.0 - load, "small": load})
    placed = place(asked, fleet(2), Rules(hysteresis=0.1), before(big="w1", other="w0", small="w1"))
    assert homes(placed)["small"] == ("w1" if stays else "w0")


def test_lpt_012_a_worker_that_is_gone_is_forgotten():
    assert homes(place(demands({"a": 0.5}), fleet(2), Rules(), before(a="w7"))) == {"a": "w0"}


def test_lpt_012_of_several_replicas_former_ones_win_ties_only():
    rules = Rules(replicas={"m": 2})
    assert homes(place(demands({"m": 0.4}), fleet(3), rules, before(m="w1,w2"))) == {"m": "w1,w2"}
    asked = demands({"hot": 0.5, "m": 0.4})
    assert homes(place(asked, fleet(3), rules, before(hot="w2", m="w1,w2"))) == {"hot": "w2", "m": "w0,w1"}


def test_noise_below_the_hysteresis_moves_nothing_also_where_it_would_change_the_order():
    """Without a dead band of the demands `c` would go to `w1`, and `b` come before `a`."""
    first = place(demands({"a": 0.8, "b": 0.8, "c": 0.05}), fleet(2), Rules(hysteresis=0.1))
    assert homes(first) == {"a": "w0", "b": "w1", "c": "w0"}
    noisy = place(demands({"a": 0.84, "b": 0.728, "c": 0.0545}), fleet(2), Rules(hysteresis=0.1), first)
    assert homes(noisy) == homes(first)
    grown = place(demands({"a": 0.89, "b": 0.728, "c": 0.0545}), fleet(2), Rules(hysteresis=0.1), noisy)
    assert homes(grown)["c"] == "w1"


# oversubscription


def case_020(*, oversubscribe):
    asked = demands({"cpu1": 1.0, "m": 0.0, "occ0": 0.0}, {"cpu1": 1, "occ0": 7, "m": 3.5})
    rules = Rules(hysteresis=0.1, oversubscribe=oversubscribe)
    return place(asked, fleet(2, 10 * GB), rules, before(m="w0", occ0="w0", cpu1="w1"))


def test_lpt_020_softly_a_model_stays_though_its_worker_is_given_too_much():
    placed = case_020(oversubscribe=True)
    assert homes(placed) == {"cpu1": "w1", "occ0": "w0", "m": "w0"}
    assert placed.nbytes["w0"] == 10.5 * GB


def test_lpt_020_forbidden_it_goes_where_there_is_room():
    placed = case_020(oversubscribe=False)
    assert homes(placed) == {"cpu1": "w1", "occ0": "w0", "m": "w1"}
    assert placed.nbytes == {"w0": 7 * GB, "w1": 4.5 * GB}


def test_lpt_021_with_room_everywhere_forbidding_changes_nothing():
    asked = demands({"a": 0.6, "b": 0.5, "c": 0.1}, {"a": 1, "b": 2, "c": 3})
    both = [place(asked, fleet(2, 100 * GB), Rules(oversubscribe=each)).homes for each in (True, False)]
    assert both[0] == both[1]


def test_lpt_021_what_fits_nowhere_is_placed_all_the_same():
    assert homes(place(demands({"a": 0.1}, {"a": 20}), fleet(2, 10 * GB), Rules())) == {"a": "w0"}


def test_lpt_022_workers_with_room_come_first_and_others_where_too_few_have_it():
    asked = demands({"x": 0.9, "m": 0.1}, {"x": 8, "m": 5})
    assert homes(place(asked, fleet(3, 10 * GB), Rules(replicas={"m": 2}))) == {"x": "w0", "m": "w1,w2"}
    assert homes(place(asked, fleet(3, 10 * GB), Rules(replicas={"m": 3})))["m"] == "w0,w1,w2"


def test_lpt_022_it_is_greedy_and_may_miss_a_placement_that_fits():
    asked = demands({"a": 0.4, "b": 0.3, "c": 0.0}, {"a": 5, "b": 5, "c": 10})
    assert homes(place(asked, fleet(2, 10 * GB), Rules())) == {"a": "w0", "b": "w1", "c": "w0"}


def test_lpt_023_a_worker_that_was_given_too_much_is_named():
    budgets = fleet(2, 10 * GB)
    placed = place(demands({"a": 0.4, "b": 0.3, "c": 0.0}, {"a": 5, "b": 5, "c": 10}), budgets, Rules())
    assert overfull(placed, budgets) == {"w0": 15 * GB}
    assert overfull(placed, fleet(2)) == {}


# drift


def test_lpt_032_a_model_that_some_workers_lack_is_served_by_all_that_have_it():
    asked = demands({"a": 0.6, "b": 0.5, "nowhere": 0.1})
    placed = place(asked, fleet(3), Rules(), holders={"a": ["w2", "w1"], "nowhere": [], "b": ["w0", "w1", "w2"]})
    assert homes(placed) == {"a": "w1,w2", "b": "w0"}
    assert placed.drifted == ("a", "nowhere")
    assert placed.weights("a") == {"w1": Fraction(1, 2), "w2": Fraction(1, 2)}


def test_workers_whose_models_changed_are_told():
    old, new = before(a="w0", b="w1", c="w2"), before(a="w0", b="w2", c="w2")
    assert changed_workers(old, new) == ("w1", "w2")
    assert changed_workers(None, new) == ("w0", "w2")
    assert changed_workers(new, new) == ()
