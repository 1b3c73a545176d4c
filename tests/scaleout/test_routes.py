"""What the proxy is told of a placement."""

from app.scaleout.placement import Placement
from app.scaleout.routes import SETS, Group, Routes, routes

FLEET = ("w0", "w1", "w2")


def spread(model):
    return None


def told(homes, quantum=spread, previous=None):
    return routes(Placement({model: tuple(at.split(",")) for model, at in homes.items()}), FLEET, quantum, previous)


def test_one_worker_and_all_workers_have_backends_of_their_own():
    found = told({"a": "w1", "b": "w0,w1,w2"})
    assert found == Routes({"a": "on_w1", "b": "pool"})


def test_models_on_the_same_workers_share_a_backend():
    found = told({"a": "w0,w1", "b": "w0,w1", "c": "w1,w2"})
    assert found.models == {"a": "set_0", "b": "set_0", "c": "set_1"}
    assert found.groups == {"set_0": Group(("w0", "w1")), "set_1": Group(("w1", "w2"))}


def test_fill_a_quantum_makes_another_group_also_of_all_workers():
    found = told({"a": "w0,w1,w2", "b": "w0,w1,w2", "c": "w2"}, {"a": 8, "b": 16, "c": 8}.get)
    assert found.models == {"a": "fill_0", "b": "fill_1", "c": "on_w2"}
    assert found.groups["fill_1"] == Group(FLEET, 16)


def test_lpt_034_a_group_that_stays_keeps_its_backend_and_with_it_its_counts():
    first = told({"a": "w0,w1", "b": "w1,w2"})
    second = told({"b": "w1,w2", "c": "w0,w2"}, previous=first)
    assert second.models == {"b": "set_1", "c": "set_0"}


def test_where_no_backend_is_left_the_pool_serves_and_the_model_is_named():
    quanta = {f"m{number:02}": number + 1 for number in range(SETS + 1)}
    found = told(dict.fromkeys(quanta, "w0,w1"), quanta.get)
    assert found.without == (f"m{SETS:02}",)
    assert found.models[f"m{SETS:02}"] == "pool"
    assert len(set(found.models.values())) == SETS + 1
