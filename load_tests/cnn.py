"""A convolutional network of the shape of ResNet-50 with random weights: 224 × 224 images to 1000 scores, 102 MB."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 1000
IMAGE = (3, 224, 224)

# (blocks, channels inside a block, stride of the first block)
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_EXPANSION = 4


def resnet50() -> onnx.ModelProto:
    """`image` [batch, 3, 224, 224] to `scores` [batch, 1000]; batch normalisation is folded into the convolutions."""
    network = _Network()
    name = network.convolution("image", IMAGE[0], 64, kernel=7, stride=2)
    name = network.add("MaxPool", name, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for blocks, width, stride in _STAGES:
        for block in range(blocks):
            name = network.bottleneck(name, channels, width, stride if block == 0 else 1)
            channels = width * _EXPANSION
    name = network.add("Flatten", network.add("GlobalAveragePool", name))
    weights = [network.weight((channels, CLASSES), channels), network.weight((CLASSES,), CLASSES)]
    network.nodes.append(helper.make_node("Gemm", [name, *weights], ["scores"]))
    graph = helper.make_graph(
        network.nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *IMAGE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        network.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class _Network:
    """Collects the nodes and the weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; the name of its output."""
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def weight(self, shape: tuple[int, ...], fan_in: int) -> str:
        """Append weights that keep the activations in range; their name."""
        values = self._random.standard_normal(shape, dtype=np.float32) / np.float32(fan_in**0.5)
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(
        self, name: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, rectify: bool = True
    ) -> str:
        """A convolution with bias, and ReLU if wanted."""
        weights = self.weight((outputs, inputs, kernel, kernel), inputs * kernel * kernel)
        bias = self.weight((outputs,), 100 * outputs)
        pads = [kernel // 2] * 4
        name = self.add("Conv", name, weights, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
        return self.add("Relu", name) if rectify else name

    def bottleneck(self, name: str, inputs: int, width: int, stride: int) -> str:
        """Narrow, convolve, widen, and add what came in; the name of the sum."""
        outputs = width * _EXPANSION
        inner = self.convolution(name, inputs, width)
        inner = self.convolution(inner, width, width, kernel=3, stride=stride)
        inner = self.convolution(inner, width, outputs, rectify=False)
        if inputs != outputs:
            name = self.convolution(name, inputs, outputs, stride=stride, rectify=False)
        return self.add("Relu", self.add("Add", inner, name))
