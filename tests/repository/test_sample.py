"""The optional sample of a bundle's executable inputs."""

import numpy as np
import pytest
from onnx import TensorProto

from app.domain.errors import BundleError
from app.repository.bundle import load_bundle

ROWS = np.ones((2, 3), dtype=np.float32)


@pytest.fixture
def complaint(bundle_dir):
    """What is said about a sample of the given arrays."""

    def complaint_of(**arrays):
        np.savez(bundle_dir / "sample.npz", **arrays)
        with pytest.raises(BundleError) as caught:
            load_bundle(bundle_dir)
        file, _, text = str(caught.value).partition(": ")
        assert file == str(bundle_dir / "sample.npz")
        return text

    return complaint_of


def test_bundle_without_a_sample_has_none(bundle_dir):
    assert load_bundle(bundle_dir).sample is None


def test_sample_is_read(bundle_dir):
    np.savez(bundle_dir / "sample.npz", x=ROWS)
    sample = load_bundle(bundle_dir).sample
    assert sample is not None
    assert list(sample) == ["x"]
    np.testing.assert_array_equal(sample["x"], ROWS)


def test_byte_strings_become_bytes_tensors(bundle_dir, write_graph):
    write_graph(bundle_dir / "model.onnx", [("x", TensorProto.STRING, ["n"])])
    np.savez(bundle_dir / "sample.npz", x=np.array([b"one", b"three"]))
    sample = load_bundle(bundle_dir).sample
    assert sample is not None
    assert sample["x"].tolist() == [b"one", b"three"]


def test_wrong_names_are_refused(complaint):
    assert complaint(y=ROWS, z=ROWS) == "holds y, z: store the executable inputs x"
    assert complaint() == "holds nothing: store the executable inputs x"


def test_wrong_dtype_and_shape_are_refused(complaint):
    assert complaint(x=ROWS.astype(np.float64)) == "'x' is float64 [2, 3]: store FP32 [-1, 3]"
    assert complaint(x=ROWS[:, :2]) == "'x' is float32 [2, 2]: store FP32 [-1, 3]"


def test_rows_must_agree_and_be_some(bundle_dir, write_graph, complaint):
    assert complaint(x=ROWS[:0]) == (
        "input 'x' has 0 rows: a request needs at least one: store one row count, at least one row"
    )
    both = [("x", TensorProto.FLOAT, ["n", 3]), ("mask", TensorProto.FLOAT, ["n"])]
    write_graph(bundle_dir / "model.onnx", both, [("y", TensorProto.FLOAT, ["n", 3])])
    assert complaint(x=ROWS, mask=np.ones(3, np.float32)).endswith(": store one row count, at least one row")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x93NUMPY", b"text"])
def test_what_is_no_npz_file_is_refused(bundle_dir, content):
    (bundle_dir / "sample.npz").write_bytes(content)
    with pytest.raises(BundleError, match=r"sample\.npz: not an npz file of plain arrays \(.*write it with numpy\.sav"):
        load_bundle(bundle_dir)


def test_plain_npy_file_is_refused(bundle_dir):
    with (bundle_dir / "sample.npz").open("wb") as file:
        np.save(file, ROWS)
    with pytest.raises(BundleError, match="not an npz file of plain arrays"):
        load_bundle(bundle_dir)


def test_pickled_objects_are_not_loaded(complaint):
    assert complaint(x=np.array([[b"a"]], dtype=object)).startswith("not an npz file of plain arrays (Object arrays")
