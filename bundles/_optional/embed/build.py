"""Writes the ONNX graph of a small BERT around the weights of all-MiniLM-L6-v2: tokens in, a unit vector out."""

import json
from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS = 6, 384, 12
EPSILON = 1e-12  # of the layer normalisation
MASKED = -1e9  # what is added to the score of a token that is not there


def build(source, target):
    """Read the weights from a safetensors file `source`, write `model.onnx` into the directory `target`."""
    graph = Graph(read(source))
    onnx.save_model(graph.model(), target / "model.onnx")


def read(file):
    """The tensors of a safetensors file, by name: a length, a table in JSON, then the numbers."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    table = json.loads(content[8:begin])
    table.pop("__metadata__", None)
    types = {"F32": "<f4", "I64": "<i8"}
    return {
        name: np.frombuffer(content[begin + first : begin + last], types[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in table.items()
        for first, last in [entry["data_offsets"]]
    }


class Graph:
    """Nodes and weights as they are added; every method returns the name of a value."""

    def __init__(self, weights):
        self._weights = weights
        self._nodes, self._constants = [], {}

    def model(self):
        """The whole graph, with the weights in it."""
        values = self._embeddings()
        present = self._node("Cast", "attention_mask", to=TensorProto.FLOAT)
        absent = self._node("Sub", self._constant(np.float32(1)), self._unsqueezed(present, [1, 2]))
        bias = self._node("Mul", absent, self._constant(np.float32(MASKED)))
        for layer in range(LAYERS):
            values = self._layer(values, bias, f"encoder.layer.{layer}")
        self._nodes.append(helper.make_node("Identity", [self._pooled(values, present)], ["embedding"]))
        tokens = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in ("input_ids", "attention_mask")
        ]
        embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH])
        constants = [numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        graph = helper.make_graph(self._nodes, "all-MiniLM-L6-v2", tokens, [embedding], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _embeddings(self):
        """What a token is, and where; every token is of the first of two sentences."""
        places = self._weights["embeddings.position_embeddings.weight"]
        places = places + self._weights["embeddings.token_type_embeddings.weight"][0]
        count = self._node("Shape", "input_ids", start=1)
        place = self._node("Slice", self._constant(places, "places"), self._constant([0]), count, self._constant([0]))
        word = self._node("Gather", self._weight("embeddings.word_embeddings.weight"), "input_ids")
        return self._normalised(self._node("Add", word, place), "embeddings.LayerNorm")

    def _layer(self, values, bias, name):
        query, key, value = (self._heads(values, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        scores = self._node("MatMul", query, self._node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self._node("Div", scores, self._constant(np.float32(sqrt(WIDTH // HEADS))))
        shares = self._node("Softmax", self._node("Add", scores, bias), axis=-1)
        seen = self._node("Transpose", self._node("MatMul", shares, value), perm=[0, 2, 1, 3])
        seen = self._node("Reshape", seen, self._constant([0, 0, WIDTH]))
        seen = self._linear(seen, f"{name}.attention.output.dense")
        values = self._normalised(self._node("Add", seen, values), f"{name}.attention.output.LayerNorm")
        inner = self._gelu(self._linear(values, f"{name}.intermediate.dense"))
        outer = self._linear(inner, f"{name}.output.dense")
        return self._normalised(self._node("Add", outer, values), f"{name}.output.LayerNorm")

    def _heads(self, values, name):
        split = self._node("Reshape", self._linear(values, name), self._constant([0, 0, HEADS, WIDTH // HEADS]))
        return self._node("Transpose", split, perm=[0, 2, 1, 3])

    def _gelu(self, values):
        curve = self._node("Erf", self._node("Div", values, self._constant(np.float32(sqrt(2)))))
        curve = self._node("Mul", values, self._node("Add", curve, self._constant(np.float32(1))))
        return self._node("Mul", curve, self._constant(np.float32(0.5)))

    def _pooled(self, values, present):
        """The mean over the tokens that are there, at length 1; zeros where there is none."""
        present = self._unsqueezed(present, [2])
        total = self._node("ReduceSum", self._node("Mul", values, present), self._constant([1]), keepdims=0)
        count = self._node("ReduceSum", present, self._constant([1]), keepdims=0)
        mean = self._node("Div", total, self._node("Max", count, self._constant(np.float32(1e-9))))
        length = self._node("ReduceL2", mean, axes=[1])
        return self._node("Div", mean, self._node("Max", length, self._constant(np.float32(1e-12))))

    def _linear(self, values, name):
        weight = self._constant(np.ascontiguousarray(self._weights[f"{name}.weight"].T), f"{name}.weight")
        return self._node("Add", self._node("MatMul", values, weight), self._weight(f"{name}.bias"))

    def _normalised(self, values, name):
        weights = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._node("LayerNormalization", values, *weights, epsilon=EPSILON)

    def _unsqueezed(self, value, axes):
        return self._node("Unsqueeze", value, self._constant(axes))

    def _weight(self, name):
        return self._constant(self._weights[name], name)

    def _constant(self, value, name=None):
        array = np.array(value, dtype=np.int64) if isinstance(value, list) else np.asarray(value)
        name = name or f"constant {array.dtype} {array.tolist()}"
        self._constants[name] = array
        return name

    def _node(self, kind, *inputs, **attributes):
        output = f"{kind} {len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output
