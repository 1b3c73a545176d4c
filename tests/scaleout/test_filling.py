"""How much of a model one worker takes before the next is used."""

import pytest

from app.scaleout.filling import FillRules, quantum


@pytest.mark.parametrize(
    ("factor", "max_batch", "rows"),
    [(1.0, 8, 8), (1.5, 8, 12), (0.25, 8, 2), (0.5, 4, 4 // 2), (0.01, 8, 1), (1.0, None, 1), (0.5, 5, 2)],
)
def test_fill_001_the_quantum_is_so_many_largest_batches(factor, max_batch, rows):
    assert quantum(factor, max_batch) == rows


def test_fill_015_mode_and_factor_of_a_model_are_overridden_separately():
    assert FillRules().of("m", 8) is None
    rules = FillRules("fill", 1.0, modes={"spread": "spread"}, factors={"double": 2.0, "spread": 3.0})
    assert [rules.of(model, 8) for model in ("m", "double", "spread")] == [8, 16, None]
    assert FillRules("spread", 1.0, modes={"m": "fill"}).of("m", 8) == 8


def test_fill_015_without_its_own_a_model_has_the_default_again():
    assert FillRules("fill", 2.0, modes={}, factors={}).of("spread", 8) == 16
