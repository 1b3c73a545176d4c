"""The `tabular` bundle against scikit-learn's own answers, which `train.py` wrote."""

import json
from pathlib import Path

import numpy as np
import pytest

EXPECTED = json.loads(Path(__file__).with_name("tabular_expected.json").read_text())


@pytest.fixture(scope="module")
def answer(serve):
    return serve("tabular")


def test_answers_are_those_of_scikit_learn(answer):
    outputs = answer(X=np.array(EXPECTED["X"], dtype=np.float32))
    np.testing.assert_array_equal(outputs["label"], EXPECTED["label"])
    # The smaller probability is 1 less the larger one in single precision: atol is its rounding there.
    np.testing.assert_allclose(outputs["probabilities"], EXPECTED["probabilities"], rtol=1e-5, atol=1e-7)


def test_expected_rows_are_of_both_classes():
    assert set(EXPECTED["label"]) == {0, 1}


def test_row_alone_is_answered_as_in_a_batch(answer):
    rows = np.array(EXPECTED["X"], dtype=np.float32)
    together = answer(X=rows)
    for row in range(len(rows)):
        alone = answer(X=rows[row : row + 1])
        np.testing.assert_array_equal(alone["probabilities"], together["probabilities"][row : row + 1])


def test_sample_holds_rows_of_the_data(load):
    np.testing.assert_array_equal(load("tabular").sample["X"], np.array(EXPECTED["X"], dtype=np.float32))


def test_training_script_is_no_hook(load):
    hooks = load("tabular").hooks
    assert hooks.preprocess is hooks.postprocess is hooks.run is None
