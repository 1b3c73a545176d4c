"""Every block of a weights file begins where aligned instructions may read it, and holds what it held."""

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from app.backends.align import ALIGNMENT, align_weights


def external(name, offset, length, *packed):
    tensor = TensorProto(name=name, data_location=TensorProto.EXTERNAL)
    entries = [("location", "weights.bin"), ("offset", str(offset)), ("length", str(length))]
    entries += [("prepacked_1", f"MatMul+{number}|{'|'.join(blocks)}") for number, blocks in enumerate(packed)]
    for key, text in entries:
        tensor.external_data.add(key=key, value=text)
    return tensor


def blocks_of(tensor):
    """(offset, length) of a tensor's own block and of every packed one."""
    entries = [(entry.key, entry.value) for entry in tensor.external_data]
    own = dict(entries)
    blocks = [(int(own["offset"]), int(own["length"]))]
    for key, text in entries:
        if key.startswith("prepacked"):
            fields = [block.split(";") for block in text.split("|")[1:]]
            blocks += [(int(offset), int(length)) for offset, length, _ in fields]
    return blocks


lengths = st.lists(st.integers(0, 200), min_size=1, max_size=4)


@settings(max_examples=60)
@given(tensors=st.lists(st.tuples(st.integers(1, 200), st.lists(lengths, max_size=2)), min_size=1, max_size=5))
def test_blocks_are_aligned_and_keep_their_bytes(tmp_path_factory, tensors):
    file = tmp_path_factory.mktemp("align") / "weights.bin"
    content, model, number = b"", onnx.ModelProto(), 0

    def block(length):
        nonlocal content, number
        offset, number = len(content), number + 1
        content += bytes([number % 256]) * length
        return offset

    for length, packed in tensors:
        entries = [[f"{block(size)};{size};0" for size in sizes] for sizes in packed]
        model.graph.initializer.append(external("w", block(length), length, *entries))
    file.write_bytes(content)
    before = [content[o : o + n] for tensor in model.graph.initializer for o, n in blocks_of(tensor)]
    align_weights(model, file)
    after = [block for tensor in model.graph.initializer for block in blocks_of(tensor)]
    assert all(offset % ALIGNMENT == 0 for offset, _ in after)
    moved = file.read_bytes()
    assert [moved[offset : offset + length] for offset, length in after] == before


def test_a_block_that_two_tensors_share_stays_one(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"?" + b"a" * 100)
    model = onnx.ModelProto()
    model.graph.initializer.extend([external("v", 1, 100), external("w", 1, 100)])
    align_weights(model, file)
    assert [blocks_of(tensor) for tensor in model.graph.initializer] == [[(0, 100)]] * 2
    assert file.stat().st_size == 100


def test_tensors_inside_the_graph_are_left_alone(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    model = onnx.ModelProto()
    model.graph.initializer.append(TensorProto(name="w", raw_data=b"1234"))
    before = model.SerializeToString()
    align_weights(model, file)
    assert model.SerializeToString() == before


def test_a_block_beyond_the_end_of_the_file_is_an_error(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"short")
    model = onnx.ModelProto()
    model.graph.initializer.append(external("w", 0, 100))
    with pytest.raises(OSError, match="after the end"):
        align_weights(model, file)
