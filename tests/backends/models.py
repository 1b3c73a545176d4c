"""Small ONNX models that each have one peculiarity, with the specification a manifest reader would give them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from app.domain.model import ModelSpec, Variant
from app.domain.tensors import TensorSpec

FLOAT, INT64, STRING, BF16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BFLOAT16

node = helper.make_node
value = helper.make_tensor_value_info


def weights(name, *shape):
    random = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name)


def constant(name, values, dtype=np.int64):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model(nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(built)
    return built


def copy(built):
    duplicate = onnx.ModelProto()
    duplicate.CopyFrom(built)
    return duplicate


def save(folder, built, name="model.onnx"):
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(built, str(folder / name))
    return folder / name


def spec(inputs, outputs, sizes=(1, 2, 4), variants=None, name="m", **changes):
    variants = variants or (Variant("default", tuple(sizes), {}),)
    return ModelSpec(name, tuple(inputs), tuple(outputs), tuple(variants), **changes)


def mlp(batch="n", sizes=(1, 2, 10)):
    """Widths that are no multiple of anything, so that packed blocks end anywhere; `batch` None leaves it unnamed."""
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"]),
        node("Add", ["m0", "b0"], ["a0"]),
        node("Relu", ["a0"], ["r0"]),
        node("MatMul", ["r0", "w1"], ["m1"]),
        node("Relu", ["m1"], ["r1"]),
        node("MatMul", ["r1", "w2"], ["y"]),
    ]
    initializers = [weights("w0", 33, 65), weights("b0", 65), weights("w1", 65, 129), weights("w2", 129, 31)]
    built = model(nodes, [value("x", FLOAT, [batch, 33])], [value("y", FLOAT, [batch, 31])], initializers)
    return built, spec([TensorSpec("x", "FP32", (-1, 33), 0)], [TensorSpec("y", "FP32", (-1, 31), 0)], sizes)


def convolutions():
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1] * 4),
        node("GlobalAveragePool", ["c1"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w2", "b2"], ["y"]),
    ]
    initializers = [weights("w0", 16, 3, 3, 3), weights("b0", 16), weights("w1", 40, 16, 3, 3), weights("b1", 40)]
    initializers += [weights("w2", 40, 37), weights("b2", 37)]
    built = model(nodes, [value("x", FLOAT, ["n", 3, "h", "w"])], [value("y", FLOAT, ["n", 37])], initializers)
    inputs, outputs = [TensorSpec("x", "FP32", (-1, 3, -1, -1), 0)], [TensorSpec("y", "FP32", (-1, 37), 0)]
    variants = [
        Variant(f"{height}x{width}", (1, 2), {("x", 2): height, ("x", 3): width}) for height, width in ((8, 8), (12, 8))
    ]
    return built, spec(inputs, outputs, variants=variants)


def recurrent():
    """The batch is on axis 1 of the input, and time stays free on axis 0."""
    nodes = [
        node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=37),
        node("Squeeze", ["h", "axis"], ["s"]),
        node("MatMul", ["s", "d"], ["y"]),
    ]
    initializers = [weights("w", 1, 148, 13), weights("r", 1, 148, 37), weights("d", 37, 29), constant("axis", [0])]
    built = model(nodes, [value("x", FLOAT, ["t", "n", 13])], [value("y", FLOAT, ["n", 29])], initializers)
    return built, spec([TensorSpec("x", "FP32", (-1, -1, 13), 1)], [TensorSpec("y", "FP32", (-1, 29), 0)])


def two_names():
    """Each input calls the batch differently."""
    nodes = [node("MatMul", ["a", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    inputs = [value("a", FLOAT, ["n", 20]), value("b", FLOAT, ["m", 20])]
    built = model(nodes, inputs, [value("y", FLOAT, [None, 20])], [weights("w", 20, 20)])
    tensors = [TensorSpec(name, "FP32", (-1, 20), 0) for name in "ab"]
    return built, spec(tensors, [TensorSpec("y", "FP32", (-1, 20), 0)])


def one_name_twice():
    """The batch dim and a data dim have one name, though nothing makes them equal."""
    nodes = [node("MatMul", ["a", "w"], ["y"]), node("ReduceSum", ["c", "axis"], ["z"], keepdims=0)]
    inputs = [value("a", FLOAT, ["d", 20]), value("c", FLOAT, ["d", "d"])]
    outputs = [value("y", FLOAT, ["d", 20]), value("z", FLOAT, [None])]
    built = model(nodes, inputs, outputs, [weights("w", 20, 20), constant("axis", [1])])
    tensors = [TensorSpec("a", "FP32", (-1, 20), 0), TensorSpec("c", "FP32", (-1, -1), 0)]
    return built, spec(tensors, [TensorSpec("y", "FP32", (-1, 20), 0), TensorSpec("z", "FP32", (-1,), 0)])


def text():
    built = model([node("Identity", ["x"], ["y"])], [value("x", STRING, ["n", 2])], [value("y", STRING, ["n", 2])])
    return built, spec([TensorSpec("x", "BYTES", (-1, 2), 0)], [TensorSpec("y", "BYTES", (-1, 2), 0)])


def brain_float():
    """BF16 in and out, with a weight large enough to be shared."""
    nodes = [
        node("Cast", ["x"], ["f"], to=FLOAT),
        node("MatMul", ["f", "w"], ["g"]),
        node("Cast", ["g"], ["y"], to=BF16),
    ]
    built = model(nodes, [value("x", BF16, ["n", 33])], [value("y", BF16, ["n", 33])], [weights("w", 33, 33)])
    return built, spec([TensorSpec("x", "BF16", (-1, 33), 0)], [TensorSpec("y", "BF16", (-1, 33), 0)])


def brain_float_and_text(to=FLOAT):
    """BF16 and text in; text and what `to` says out."""
    nodes = [node("Cast", ["x"], ["y"], to=to), node("Identity", ["s"], ["t"])]
    inputs = [value("x", BF16, ["n", 3]), value("s", STRING, ["n"])]
    built = model(nodes, inputs, [value("y", to, ["n", 3]), value("t", STRING, ["n"])])
    tensors = [TensorSpec("x", "BF16", (-1, 3), 0), TensorSpec("s", "BYTES", (-1,), 0)]
    datatype = "BF16" if to == BF16 else "FP32"
    return built, spec(tensors, [TensorSpec("y", datatype, (-1, 3), 0), TensorSpec("t", "BYTES", (-1,), 0)])


def no_batch():
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    built = model(nodes, [value("x", FLOAT, [33])], [value("y", FLOAT, [33])], [weights("w", 33, 33)])
    return built, spec([TensorSpec("x", "FP32", (33,))], [TensorSpec("y", "FP32", (33,))])


def subgraphs():
    """The weights lie in the branches of an If."""

    def branch(name):
        return helper.make_graph(
            [node("MatMul", ["x", f"w_{name}"], [f"y_{name}"])],
            name,
            [],
            [value(f"y_{name}", FLOAT, None)],
            [weights(f"w_{name}", 33, 35)],
        )

    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Greater", ["top", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], then_branch=branch("then"), else_branch=branch("else")),
    ]
    initializers = [constant("zero", 0.0, np.float32)]
    built = model(nodes, [value("x", FLOAT, ["n", 33])], [value("y", FLOAT, ["n", 35])], initializers)
    return built, spec([TensorSpec("x", "FP32", (-1, 33), 0)], [TensorSpec("y", "FP32", (-1, 35), 0)])


def one_weight_two_kernels():
    """One weight that two kinds of node pack, each in its own way."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Gemm", ["x", "w", "b"], ["q"], transB=1),
        node("Sub", ["p", "q"], ["y"]),
    ]
    initializers = [weights("w", 33, 33), weights("b", 33)]
    built = model(nodes, [value("x", FLOAT, ["n", 33])], [value("y", FLOAT, ["n", 33])], initializers)
    return built, spec([TensorSpec("x", "FP32", (-1, 33), 0)], [TensorSpec("y", "FP32", (-1, 33), 0)])


def tiny():
    """Nothing in it is large enough to be shared."""
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    built = model(nodes, [value("x", FLOAT, [None, 3])], [value("y", FLOAT, [None, 2])], [weights("w", 3, 2)])
    return built, spec([TensorSpec("x", "FP32", (-1, 3), 0)], [TensorSpec("y", "FP32", (-1, 2), 0)])


def fixed_inside(sizes=(1, 2)):
    """The batch looks free, and a Reshape inside fixes it at 1."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Reshape", ["m", "shape"], ["y"])]
    initializers = [weights("w", 33, 33), constant("shape", [1, 33])]
    built = model(nodes, [value("x", FLOAT, ["n", 33])], [value("y", FLOAT, ["n", 33])], initializers)
    return built, spec([TensorSpec("x", "FP32", (-1, 33), 0)], [TensorSpec("y", "FP32", (-1, 33), 0)], sizes)


def rows_to_rows(nodes, initializers=(), width=6, outputs=None, sizes=(1, 2, 8)):
    """`x` FP32 [n, width] to `y` FP32 [n, width], whatever happens between; `outputs` are the extents of `y`."""
    results = [value("y", FLOAT, outputs or ["n", width])]
    built = model(nodes, [value("x", FLOAT, ["n", width])], results, initializers, opset=18)
    specs = [TensorSpec(name, "FP32", (-1, width), 0) for name in "xy"]
    return built, spec(specs[:1], specs[1:], sizes)


def running_sum():
    """Time is on axis 0: every row is the sum of those up to it, so that the first depends on no other."""
    return rows_to_rows([node("CumSum", ["x", "axis"], ["y"])], [constant("axis", 0)])


def gated():
    """Time is on axis 0, and a GRU remembers."""
    nodes = [
        node("Unsqueeze", ["x", "axis"], ["s"]),
        node("GRU", ["s", "w", "r"], ["o"], hidden_size=6),
        node("Squeeze", ["o", "axes"], ["y"]),
    ]
    initializers = [weights("w", 1, 18, 6), weights("r", 1, 18, 6), constant("axis", [1]), constant("axes", [1, 2])]
    return rows_to_rows(nodes, initializers)


def centred():
    """What is common to all rows is taken from each."""
    nodes = [node("ReduceMean", ["x", "axis"], ["m"], keepdims=1), node("Sub", ["x", "m"], ["y"])]
    return rows_to_rows(nodes, [constant("axis", [0])])


def numbered():
    """Rows do not reach one another, and yet each is given its number."""
    nodes = [
        node("CumSum", ["ones", "axis"], ["n"]),
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("ConstantOfShape", ["s"], ["flat"], value=constant("one", [1.0], np.float32)),
        node("Unsqueeze", ["flat", "last"], ["ones"]),
        node("Add", ["x", "n"], ["y"]),
    ]
    return rows_to_rows([*nodes[1:4], nodes[0], nodes[4]], [constant("axis", 0), constant("last", [1])])


def quantised():
    """The scale of the integers is that of the largest value in the batch."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("MatMulInteger", ["q", "w", "zero"], ["i"]),
        node("Cast", ["i"], ["f"], to=FLOAT),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    random = np.random.default_rng(3)
    return rows_to_rows(nodes, [constant("w", random.integers(-100, 100, (6, 6)), np.int8)])


def reduced():
    """One row of answers, however many rows are asked for."""
    return rows_to_rows(
        [node("ReduceMax", ["x", "axis"], ["y"], keepdims=1)], [constant("axis", [0])], outputs=[None, 6]
    )


def poisoned_by_zeros():
    """Each row over its own norm; a row of zeros makes all of them NaN."""
    nodes = [
        node("ReduceL2", ["x", "last"], ["norm"], keepdims=1),
        node("Div", ["x", "norm"], ["d"]),
        node("ReduceSum", ["d"], ["sum"], keepdims=0),
        node("Mul", ["sum", "nothing"], ["poison"]),
        node("Add", ["d", "poison"], ["y"]),
    ]
    return rows_to_rows(nodes, [constant("last", [1]), constant("nothing", 0.0, np.float32)])


def inputs_for(described, rows, seed=0, extent=5):
    """Random inputs of `rows` rows for the first variant."""
    random = np.random.default_rng(seed)
    variant = described.variants[0]
    inputs = {}
    for tensor in described.inputs:
        shape = tuple(
            rows if axis == tensor.batch_axis else variant.dims.get((tensor.name, axis), extent if size == -1 else size)
            for axis, size in enumerate(tensor.shape)
        )
        if tensor.datatype == "BYTES":
            words = [f"wört {number}".encode() for number in random.integers(0, 1000, shape).ravel()]
            inputs[tensor.name] = np.array([*words, None], np.object_)[:-1].reshape(shape)
        elif tensor.datatype == "BF16":
            wide = random.standard_normal(shape).astype(np.float32)
            inputs[tensor.name] = (wide.view(np.uint32) >> 16).astype(np.uint16)
        else:
            inputs[tensor.name] = random.standard_normal(shape).astype(tensor.dtype)
    return inputs
