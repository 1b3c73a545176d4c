"""The same models in plain ONNX Runtime: what no server over it can change."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from load_tests.onnx_suite.cases import Array, Tensors

_SILENT = 4


class RefusedError(Exception):
    """ONNX Runtime loads or runs something not, and says why."""


class Plain:
    """One session, made as anybody would. Raises `RefusedError`."""

    def __init__(self, model_file: Path) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = 1
        with _refusals():
            self._session = ort.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: Tensors) -> Tensors:
        """What it answers. Raises `RefusedError`."""
        options = ort.RunOptions()
        options.log_severity_level = _SILENT
        names = [output.name for output in self._session.get_outputs()]
        kinds = {output.name: output.type for output in self._session.get_outputs()}
        if "tensor(bfloat16)" not in kinds.values():
            feeds = {name: _feed(array) for name, array in inputs.items()}
            with _refusals():
                results = self._session.run(names, feeds, options)
            return {name: _encoded(np.asarray(array)) for name, array in zip(names, results, strict=True)}
        values = {name: _value(array) for name, array in inputs.items()}
        with _refusals():
            results = self._session.run_with_ort_values(names, values, options)
        return {name: _array(value, kinds[name]) for name, value in zip(names, results, strict=True)}


@contextmanager
def _refusals() -> Iterator[None]:
    """What ONNX Runtime says for itself, as against a mistake in these lines, which would excuse everything."""
    try:
        yield
    except Exception as error:
        if "[ONNXRuntimeError]" not in str(error):
            raise
        raise RefusedError(str(error)) from error


def _feed(array: Array) -> Any:
    if array.dtype.hasobject:
        return np.array([element.decode() for element in array.flat], np.object_).reshape(array.shape)
    return _value(array) if array.dtype == ml_dtypes.bfloat16 else array


def _value(array: Array) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _array(value: Any, kind: str) -> Array:
    if kind != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    bits = np.empty(value.shape(), np.uint16)
    ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits.view(ml_dtypes.bfloat16)


def _encoded(array: Array) -> Array:
    if not array.dtype.hasobject:
        return array
    texts = np.empty(array.shape, np.object_)
    texts.ravel()[:] = [element.encode() for element in array.ravel()]
    return texts


def surroundings(folder: Path) -> Mapping[str, str]:
    """What ONNX Runtime needs around it to run all that it can run, for the server and for this process alike.

    It takes operator sets that are not released yet only where it is told to; and its operators for text want the
    locale `en_US.UTF-8`, which slim images lack: any UTF-8 locale under that name will do, here the C library's own.
    """
    chosen = {"ALLOW_RELEASED_ONNX_OPSET_ONLY": "0"}
    own = Path("/usr/lib/locale/C.utf8")
    if own.is_dir() and not Path("/usr/lib/locale/en_US.utf8").exists():
        (folder / "en_US.utf8").symlink_to(own)
        chosen["LOCPATH"] = str(folder)
    return chosen
