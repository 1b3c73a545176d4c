"""Makers of small bundles: a graph that copies its inputs, a manifest beside it."""

import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from app.domain.errors import BundleError
from app.repository.bundle import load_bundle


@pytest.fixture
def write_graph():
    """Write an ONNX file; each input, a (name, element type, shape), is copied to the output of its position."""

    def write(file, inputs=None, outputs=None, **kwargs):
        inputs = inputs if inputs is not None else [("x", TensorProto.FLOAT, ["batch", 3])]
        outputs = outputs if outputs is not None else [("y", *inputs[0][1:])]
        nodes = [
            helper.make_node("Identity", [source[0]], [target[0]])
            for source, target in zip(inputs, outputs, strict=False)
        ]
        sources, targets = ([helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs))
        graph = helper.make_graph(nodes, "graph", sources, targets, **kwargs)
        onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), file)
        return file

    return write


@pytest.fixture
def bundle_dir(tmp_path, write_graph):
    """The least bundle, named `example`: x FP32 [batch, 3] is copied to y."""
    path = tmp_path / "models" / "example"
    path.mkdir(parents=True)
    write_graph(path / "model.onnx")
    return path


@pytest.fixture
def load(bundle_dir):
    """Load the bundle with the given manifest keys; `format_version` is added."""

    def load_with(**keys):
        manifest = {"format_version": "1"} | keys
        (bundle_dir / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
        return load_bundle(bundle_dir)

    return load_with


@pytest.fixture
def complaint(load, bundle_dir):
    """What is said about the given manifest keys, without the name of the file."""

    def complaint_of(**keys):
        with pytest.raises(BundleError) as caught:
            load(**keys)
        file, _, text = str(caught.value).partition(": ")
        assert file == str(bundle_dir / "manifest.yaml")
        return text

    return complaint_of
