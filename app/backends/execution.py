"""One run of a session: how tensors go in and come out.

The runners take the native session inside `InferenceSession`: its wrapper checks the feeds, which are validated long
before, and makes the list of output names anew, for 1.4 µs of the 4.8 that a run of a small model takes. Bindings with
fixed buffers would save another 1 µs, but the outputs have to outlive the next run. Copies with `OrtValue`s cost 2 µs.
"""

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from app.backends.bound import BoundSession
from app.backends.entry import BOUND, WEIGHTS_FILE, StoredEntry
from app.backends.providers import truth
from app.backends.sessions import QUIET, SessionConfig, open_entry, session_key
from app.backends.slab import Slab, open_slab
from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors

#: (native session, inputs, run options) → outputs by name. Raises whatever ONNX Runtime raises.
Runner = Callable[[Any, Tensors, Any], Tensors]

#: Inputs → outputs by name, of one session.
Run = Callable[[Tensors], Tensors]


def bind(spec: ModelSpec, session: Any) -> Run:
    """What runs one `InferenceSession`, and logs nothing. Raises `BundleError` where the datatypes allow no runner."""
    return _quiet(spec, session._sess)


def open_run(
    path: Path,
    entry: StoredEntry,
    spec: ModelSpec,
    config: SessionConfig,
    variant: str,
    size: int,
    slab: Slab | None = None,
) -> Run:
    """What runs (variant, size) of a cache entry, by itself or with others over one slab, as `bind` does.

    Raises as `open_entry` and `open_slab`.
    """
    native = open_native(path, entry, spec, config, *session_key(entry, config, variant, size))[0]
    if isinstance(native, BoundSession):
        native.attach(slab or open_slab(path / WEIGHTS_FILE, config))
    return _quiet(spec, native)


def open_native(
    path: Path, entry: StoredEntry, spec: ModelSpec, config: SessionConfig, variant: str | None, size: int
) -> tuple[Any, str]:
    """What a runner takes for a session of a cache entry, and its provider; raises as `open_entry`.

    Where weights are bound it is a `BoundSession`, and wants a slab. Only the native session is kept: it is enough to
    run, and the wrapper keeps more than a run needs.
    """
    session = open_entry(path, entry, spec, config, variant, size)
    native = BoundSession(session._sess, entry.weights) if entry.form == BOUND else session._sess
    return native, truth(session)


def _quiet(spec: ModelSpec, native: Any) -> Run:
    runner, options = runner_for(spec), ort.RunOptions()
    options.log_severity_level = QUIET
    return lambda inputs: runner(native, inputs, options)


def runner_for(spec: ModelSpec) -> Runner:
    """The cheapest runner that the datatypes of a model allow. Raises `BundleError` where there is none."""
    names = [tensor.name for tensor in spec.outputs]
    taken, given = ({tensor.datatype for tensor in tensors} for tensors in (spec.inputs, spec.outputs))
    if "BF16" in given:
        if "BYTES" in taken:
            raise BundleError(
                "ONNX Runtime cannot return BF16 where it takes text: cast the output to FP32 in the graph"
            )
        return _value_runner(spec, names)
    if {"BF16", "BYTES"} & (taken | given):
        return _converting_runner(spec, names)

    def run(session: Any, inputs: Tensors, options: Any) -> Tensors:
        return dict(zip(names, session.run(names, inputs, options), strict=True))

    return run


def _converting_runner(spec: ModelSpec, names: list[str]) -> Runner:
    """For BYTES tensors, `str` to ONNX Runtime, and for BF16 inputs, which numpy does not have."""
    conversions = {t.name: _CONVERSIONS[t.datatype] for t in spec.inputs if t.datatype in _CONVERSIONS}
    texts = [tensor.name for tensor in spec.outputs if tensor.datatype == "BYTES"]

    def run(session: Any, inputs: Tensors, options: Any) -> Tensors:
        feeds = {**inputs, **{name: convert(inputs[name]) for name, convert in conversions.items()}}
        outputs = dict(zip(names, session.run(names, feeds, options), strict=True))
        return {**outputs, **{name: _encode(outputs[name]) for name in texts}}

    return run


def _value_runner(spec: ModelSpec, names: list[str]) -> Runner:
    """For BF16 outputs: all tensors travel as `OrtValue`s, these as raw bits."""
    taken = {tensor.name: tensor.datatype for tensor in spec.inputs}
    given = [tensor.datatype for tensor in spec.outputs]

    def run(session: Any, inputs: Tensors, options: Any) -> Tensors:
        values = {name: _bits_to_value(a) if taken[name] == "BF16" else _to_value(a) for name, a in inputs.items()}
        # `values` keeps the arrays alive that the native values only point to.
        results = session.run_with_ort_values({n: v._ortvalue for n, v in values.items()}, names, options)
        return {n: _from_value(v, of) for n, v, of in zip(names, results, given, strict=True)}

    return run


def _to_value(array: Array) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(array)


def _bits_to_value(array: Array) -> Any:
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)


def _from_value(value: Any, datatype: str) -> Array:
    if datatype == "BYTES":
        return _encode(value.numpy())
    if datatype != "BF16":
        array: Array = value.numpy()
        return array
    result = np.empty(value.shape(), np.uint16)
    ctypes.memmove(result.ctypes.data, value.data_ptr(), result.nbytes)
    return result


def _decode(array: Array) -> Array:
    """`bytes` elements as `str`. Raises `UnicodeDecodeError`: ONNX strings are UTF-8."""
    result = np.empty(array.shape, np.object_)
    result.ravel()[:] = [element.decode() for element in array.ravel()]
    return result


def _encode(array: Array) -> Array:
    """`str` elements as `bytes`."""
    result = np.empty(array.shape, np.object_)
    result.ravel()[:] = [element.encode() for element in array.ravel()]
    return result


_CONVERSIONS: Mapping[str, Callable[[Array], Any]] = {"BYTES": _decode, "BF16": _bits_to_value}
