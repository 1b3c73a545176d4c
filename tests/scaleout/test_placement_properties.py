"""What holds of every placement."""

from hypothesis import given
from hypothesis import strategies as st

from app.scaleout.placement import Demand, Rules, exact, place, replica_count

WORKERS = st.integers(1, 4).map(lambda count: [f"w{number}" for number in range(count)])
LOADS = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5]), st.floats(0, 1.5))
ASKED = st.dictionaries(st.sampled_from("abcdefgh"), st.builds(Demand, LOADS, st.integers(0, 6)), max_size=8)
RULES = st.builds(
    Rules,
    st.sampled_from([1, 2, 3, "all"]),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, "all"]), max_size=2),
    st.sampled_from([0.0, 0.1, 0.3]),
)


@st.composite
def situations(draw):
    workers = draw(WORKERS)
    budgets = {worker: draw(st.sampled_from([0, 5, 10])) for worker in workers}
    rules = draw(RULES)
    previous = place(draw(ASKED), budgets, rules) if draw(st.booleans()) else None
    return draw(ASKED), budgets, rules, previous


@given(situations())
def test_every_model_stands_on_as_many_distinct_workers_as_it_should(situation):
    asked, budgets, rules, previous = situation
    placed = place(asked, budgets, rules, previous)
    assert placed.homes.keys() == asked.keys()
    for model, workers in placed.homes.items():
        assert len(set(workers)) == len(workers)
        assert len(workers) == replica_count(rules.replicas.get(model, rules.default_replicas), len(budgets))


@given(situations())
def test_nothing_is_charged_twice_or_lost(situation):
    asked, budgets, rules, previous = situation
    placed = place(asked, budgets, rules, previous)
    for model in asked:
        assert sum(placed.weights(model).values()) == 1
    for worker in budgets:
        here = [model for model, workers in placed.homes.items() if worker in workers]
        assert placed.nbytes[worker] == sum(asked[model].nbytes for model in here)
    assert abs(sum(placed.loads.values()) - sum(each.load for each in placed.demands.values())) < 1e-6


@given(situations())
def test_no_worker_gets_more_than_its_room_while_another_has_room(situation):
    """At each model's turn: whoever comes later could not know."""
    asked, budgets, rules, previous = situation
    placed = place(asked, budgets, rules, previous)
    used = dict.fromkeys(budgets, 0)
    for model in sorted(asked, key=lambda m: (-exact(placed.demands[m].load), -asked[m].nbytes, m)):
        need = asked[model].nbytes
        with_room = {w for w, budget in budgets.items() if budget <= 0 or used[w] + need <= budget}
        chosen = set(placed.homes[model])
        assert chosen <= with_room or with_room <= chosen
        for worker in chosen:
            used[worker] += need


@given(situations())
def test_placing_again_moves_nothing(situation):
    asked, budgets, rules, previous = situation
    placed = place(asked, budgets, rules, previous)
    assert place(asked, budgets, rules, placed) == placed


@given(situations(), st.data())
def test_noise_below_the_hysteresis_moves_nothing(situation, data):
    asked, budgets, rules, previous = situation
    placed = place(asked, budgets, rules, previous)
    noise = st.floats(-0.99 * rules.hysteresis, 0.99 * rules.hysteresis)
    noisy = {
        model: Demand(placed.demands[model].load * (1 + data.draw(noise)), each.nbytes) for model, each in asked.items()
    }
    for _ in range(2):
        again = place(noisy, budgets, rules, placed)
        assert again.homes == placed.homes
        placed = again


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=6), st.integers(2, 3))
def test_equal_loads_compare_equal(loads, count):
    """0.1 + 0.2 is 0.3: of two workers that carry the same, the first gets the next model."""
    budgets = {f"w{number}": 0 for number in range(count)}
    placed = place({f"m{number}": Demand(load) for number, load in enumerate(loads)}, budgets, Rules())
    tenths = dict.fromkeys(budgets, 0)
    for model in sorted(placed.homes, key=lambda m: (-loads[int(m[1:])], m)):
        least = min(budgets, key=lambda w: (tenths[w], int(w[1:])))
        assert placed.homes[model] == (least,)
        tenths[least] += round(loads[int(model[1:])] * 10)
    assert {w: load * 10 for w, load in placed.loads.items()} == tenths
