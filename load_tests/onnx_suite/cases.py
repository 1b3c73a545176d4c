"""The models of the suite as its authors ship them: a graph, what goes in, and what has to come out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, numpy_helper

Array = NDArray[Any]

#: Arrays by name, in the order of the graph. Text is `bytes` in object arrays, BF16 is `ml_dtypes.bfloat16`.
Tensors = Mapping[str, Array]

#: ONNX element type → the protocol's name; what is not here cannot be sent or read.
DATATYPES: Mapping[int, str] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "BYTES",
}

#: Where the package keeps the tests, below the directory that it was installed into.
_DATA = Path("onnx", "backend", "test", "data")

_KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """One model. Nothing of it is read before it is asked for."""

    name: str
    folder: Path

    @property
    def model_file(self) -> Path:
        """The graph."""
        return self.folder / "model.onnx"

    @cached_property
    def graph(self) -> onnx.GraphProto:
        """The graph, parsed."""
        return onnx.load(self.model_file, load_external_data=False).graph

    @cached_property
    def unsendable(self) -> frozenset[str]:
        """The types of its inputs and outputs that the protocol has no name for, as the server should call them."""
        return frozenset(_foreign(value) for value in [*self._taken, *self.graph.output]) - {""}

    @cached_property
    def inputs(self) -> Tensors:
        """What goes in; only for a model whose types can be sent."""
        return self._tensors("input", self._taken)

    @cached_property
    def expected(self) -> Tensors:
        """What has to come out; only for a model whose types can be read."""
        return self._tensors("output", self.graph.output)

    @property
    def peculiar(self) -> bool:
        """Whether its tensors are of the kinds that servers get wrong: text, BF16, without an element."""
        if self.unsendable:
            return False
        arrays = [*self.inputs.values(), *self.expected.values()]
        return any(array.dtype in (np.object_, ml_dtypes.bfloat16) or not array.size for array in arrays)

    @property
    def _taken(self) -> list[ValueInfoProto]:
        """Initializers may be inputs too, and need not be given."""
        constants = {tensor.name for tensor in self.graph.initializer}
        return [value for value in self.graph.input if value.name not in constants]

    def _tensors(self, role: str, values: Sequence[ValueInfoProto]) -> Tensors:
        data = self.folder / "test_data_set_0"
        return {value.name: _read(data / f"{role}_{index}.pb") for index, value in enumerate(values)}


def find_cases(package: Path) -> list[Case]:
    """Every model of the suite in the directory into which `onnx` was installed."""
    return [
        Case(file.parent.name, file.parent)
        for kind in _KINDS
        for file in sorted((package / _DATA / kind).glob("*/model.onnx"))
    ]


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's elements."""
    if array.dtype == ml_dtypes.bfloat16:
        return "BF16"
    return DATATYPES[onnx.helper.np_dtype_to_tensor_dtype(array.dtype)]


def rows_of(case: Case) -> int:
    """The extent that the first axes of all inputs and outputs share; 0 where they do not, or are one row only."""
    values = [*case.inputs.items(), *case.expected.items()] if not case.unsendable else []
    extents = {array.shape[0] if array.shape else 0 for _, array in values}
    return extents.pop() if len(extents) == 1 and case.inputs and max(extents) > 1 else 0


def single_rows(tensors: Tensors, rows: int) -> Iterator[Tensors]:
    """Each row by itself."""
    for row in range(rows):
        yield {name: np.ascontiguousarray(array[row : row + 1]) for name, array in tensors.items()}


def _foreign(value: ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value") or "untyped"
    if kind != "tensor_type":
        return kind.removesuffix("_type").replace("_", " ")
    element = value.type.tensor_type.elem_type
    return "" if element in DATATYPES else TensorProto.DataType.Name(element)


def _read(file: Path) -> Array:
    tensor = TensorProto.FromString(file.read_bytes())
    if tensor.data_type == TensorProto.STRING:
        texts = np.empty(len(tensor.string_data), np.object_)
        texts[:] = list(tensor.string_data)
        return texts.reshape(tuple(tensor.dims))
    return numpy_helper.to_array(tensor)
