"""Classification: the best classes of each row, as text."""

import numpy as np
import pytest

from app.api.codec.classification import MAX_ELEMENTS, classify
from app.domain.errors import InvalidRequest
from tests.api.codec.wire import objects, same
from tests.builders import tensor


def ranked(values, top, dtype=np.float32, axis=0, labels=()):
    array = np.array(values, dtype)
    declared = tensor("y", "FP32", (-1,) * array.ndim, axis)
    classes = classify(array, declared, top, labels)
    return np.vectorize(bytes.decode, otypes=[object])(classes).tolist()


def test_classes_are_ranked_per_row_with_six_decimals():
    assert ranked([[1, 10, 5], [3, 2, 1]], 2) == [["10.000000:1", "5.000000:2"], ["3.000000:0", "2.000000:1"]]


def test_labels_follow_the_index_as_far_as_they_go():
    assert ranked([[1, 10, 5]], 3, labels=("apple", "pear")) == [["10.000000:1:pear", "5.000000:2", "1.000000:0:apple"]]


def test_more_classes_than_there_are_gives_all():
    assert ranked([[1, 2]], 9) == [["2.000000:1", "1.000000:0"]]


def test_unbatched_output_gives_one_list():
    assert ranked([[1, 4], [3, 2]], 3, axis=None) == ["4.000000:1", "3.000000:2", "2.000000:3"]


def test_remaining_axes_are_flattened_and_the_batch_may_be_any_axis():
    assert ranked([[[1, 4], [3, 2]]], 2) == [["4.000000:1", "3.000000:2"]]
    assert ranked([[1, 4], [3, 2]], 1, axis=1) == [["3.000000:1"], ["4.000000:0"]]


def test_equal_values_rank_by_index_and_nan_comes_last():
    assert ranked([[2, np.nan, 7, 7]], 4) == [["7.000000:2", "7.000000:3", "2.000000:0", "nan:1"]]
    assert ranked([[np.inf, -np.inf]], 2) == [["inf:0", "-inf:1"]]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64])
def test_integers_rank_over_their_whole_range_and_print_without_decimals(dtype):
    limits = np.iinfo(dtype)
    assert ranked([[limits.min, 1, limits.max]], 3, dtype) == [[f"{limits.max}:2", "1:1", f"{limits.min}:0"]]


@pytest.mark.parametrize(("shape", "expected"), [((0, 3), (0, 2)), ((2, 0), (2, 0))])
def test_empty_outputs_keep_their_rows(shape, expected):
    classes = classify(np.zeros(shape, np.float32), tensor("y", "FP32", (-1, -1)), 2, ())
    assert same(classes, objects([], expected))


def test_too_many_elements_are_refused_naming_the_output():
    limit = np.zeros((1, MAX_ELEMENTS), np.int8)
    assert classify(limit, tensor("y", "INT8", (-1, -1)), 1, ()).tolist() == [[b"0:0"]]
    with pytest.raises(InvalidRequest, match="'y'"):
        classify(np.zeros((1, MAX_ELEMENTS + 1), np.int8), tensor("y", "INT8", (-1, -1)), 1, ())
