"""What the compile child is told of a model's sample."""

import numpy as np

from app.backends.job import sample_from_npz, sample_to_npz
from app.domain.tensors import TensorSpec
from tests.backends import models

SPEC = models.spec([TensorSpec("file", "BYTES", (-1,), 0), TensorSpec("a/b.npy", "BF16", (-1, 2), 0)], [])


def test_a_sample_arrives_as_it_was_whatever_its_names_and_types(tmp_path):
    sample = {"a/b.npy": np.array([[1, 2], [3, 4]], np.uint16), "file": np.array([b"one", b""], np.object_)}
    (tmp_path / "sample").write_bytes(sample_to_npz(SPEC, sample))
    arrived = sample_from_npz(SPEC, tmp_path / "sample")
    assert arrived is not None
    assert list(arrived) == ["file", "a/b.npy"]
    for name, array in arrived.items():
        assert array.dtype == sample[name].dtype
        assert array.tolist() == sample[name].tolist()


def test_equal_samples_are_equal_bytes():
    sample = {"a/b.npy": np.ones((1, 2), np.uint16), "file": np.array([b"one"], np.object_)}
    assert sample_to_npz(SPEC, sample) == sample_to_npz(SPEC, dict(reversed(sample.items())))


def test_no_sample_arrives_as_none(tmp_path):
    (tmp_path / "sample").touch()
    assert sample_from_npz(SPEC, tmp_path / "sample") is None
