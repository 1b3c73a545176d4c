"""An execution that is recorded once and replayed: a CUDA graph, with everything at the addresses that it was given.

ONNX Runtime records for each thread by itself and keeps what it recorded with the session, so the thread that records
is the one that replays, and a graph is destroyed by destroying its session. A session that records has an arena to
itself: a graph writes where its activations were, and in a shared arena others have been given that since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import SessionIOBinding

from app.backends.block import ALIGNMENT, Block
from app.backends.entry import StoredEntry
from app.backends.sessions import QUIET, SessionConfig, create_session, session_options
from app.backends.slab import Slab
from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors, TensorSpec

#: The run option that names a graph of a session, and the name that means: execute, record nothing.
_GRAPH_ID, _NO_GRAPH = "gpu_graph_id", "-1"

#: Executions before the one that is recorded, in which no memory may be taken. ONNX Runtime makes two by itself; with
#: an arena that grows by what is asked, those were seen not to be enough.
_SETTLING_RUNS = 2

#: What ONNX Runtime would otherwise turn into other kernels, which round differently, once all dims are known.
_KEPT_APART = ("MatMulAddFusion",)

_MEMCPY = ("MemcpyFromHost", "MemcpyToHost")


@dataclass(frozen=True)
class Place:
    """Where one tensor is in a block, in bytes from its beginning."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def fixed_shapes(spec: ModelSpec, variant: str, size: int) -> Mapping[str, tuple[int, ...]]:
    """The shapes of all inputs. Raises `BundleError` where the datatypes or free axes allow no recording."""
    if strange := sorted({each.datatype for each in (*spec.inputs, *spec.outputs)} & {"BYTES", "BF16"}):
        raise BundleError(f"{' and '.join(strange)} tensors are converted at every execution")
    dims = spec.variants_by_key[variant].dims
    shapes = {
        each.name: tuple(_extent(each, axis, dims, size) for axis in range(len(each.shape))) for each in spec.inputs
    }
    for name, shape in shapes.items():
        if -1 in shape:
            raise BundleError(f"axis {shape.index(-1)} of input {name!r} is free")
    return shapes


def _extent(tensor: TensorSpec, axis: int, dims: Mapping[tuple[str, int], int], size: int) -> int:
    return (size or -1) if axis == tensor.batch_axis else dims.get((tensor.name, axis), tensor.shape[axis])


def write_fixed(
    model: ModelProto, entry: StoredEntry, config: SessionConfig, variant: str, size: int, target: Path
) -> None:
    """Write `model`, the graph of a bound entry, with all dims fixed and whatever follows from them computed.

    So no node is left to the host that only reckons with shapes: a graph with copies between host and device cannot be
    recorded. Raises whatever ONNX Runtime raises.
    """
    fixed = ModelProto()
    fixed.CopyFrom(model)
    for node in fixed.graph.node:
        if node.op_type in _MEMCPY:  # those that are still needed are put in again
            node.op_type = "Identity"
    options = session_options(config)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    for name, extent in entry.layout.overrides(variant, size).items():
        options.add_free_dimension_override_by_name(name, extent)
    create_session(fixed.SerializeToString(), options, config, without=_KEPT_APART)


class Recording:
    """One (variant, size) of a model. Of the thread that makes it; nobody else may run or close it."""

    def __init__(
        self,
        file: Path,
        entry: StoredEntry,
        spec: ModelSpec,
        config: SessionConfig,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """A session over what `write_fixed` wrote, with nothing recorded yet.

        Raises `BundleError` for what cannot be recorded, and whatever ONNX Runtime raises, which refuses graphs with
        nodes that are not the device's.
        """
        options = session_options(config)
        options.enable_mem_pattern = False
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = create_session(
            file, options, SessionConfig(config.provider.recording, config.ordinal, config.threads)
        )
        _check_inputs(session, shapes, config)
        self._inputs, self._taken_bytes = _lay_out(spec.inputs, shapes, 0)
        self._outputs, self.block_bytes = _lay_out(spec.outputs, _fixed_outputs(session), self._taken_bytes)
        self._weights = entry.weights
        self._session: Any = session._sess
        self._binding: Any = None
        self._block: Block | None = None
        self._options = _run_options()

    def bind(self, slab: Slab, block: Block) -> None:
        """Say where weights, inputs and outputs are, for good; `block` has at least `block_bytes`."""
        binding = SessionIOBinding(self._session)
        for weight in self._weights:
            address = slab.address + weight.offset
            binding.bind_input(weight.name, slab.device, weight.onnx_type, weight.shape, address)
        for places, put in ((self._inputs, binding.bind_input), (self._outputs, binding.bind_output)):
            for place in places:
                kind = helper.np_dtype_to_tensor_dtype(place.dtype)
                put(place.name, block.device, kind, place.shape, block.address + place.offset)
        self._binding, self._block = binding, block

    def record(self, feeds: Tensors) -> Tensors:
        """Execute until it is recorded; what the recording gives for these inputs. Raises whatever is raised."""
        settling = _run_options()
        settling.add_run_config_entry(_GRAPH_ID, _NO_GRAPH)
        for _ in range(_SETTLING_RUNS):
            self._execute(feeds, settling)
        self._execute(feeds, self._options)
        return self.replay(feeds)

    def replay(self, feeds: Tensors) -> Tensors:
        """What the recording gives for inputs of exactly its shapes, in arrays of their own.

        It cannot be terminated: to the host it is one step.
        """
        return self._execute(feeds, self._options)

    def close(self) -> None:
        """Destroy the graph, with its session and all the device memory that only they have. Idempotent."""
        self._binding = self._session = self._block = None

    def _execute(self, feeds: Tensors, options: Any) -> Tensors:
        block = self._block
        assert block is not None
        for place in self._inputs:
            np.copyto(_view(block, place), feeds[place.name], casting="no")
        block.upload(self._taken_bytes)
        self._session.run_with_iobinding(self._binding, options)
        block.download(self._taken_bytes, self.block_bytes - self._taken_bytes)
        return {place.name: _view(block, place).copy() for place in self._outputs}


def fits(feeds: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether inputs have exactly these shapes."""
    return all(feeds[name].shape == shape for name, shape in shapes.items())


def _run_options() -> Any:
    options = ort.RunOptions()
    options.log_severity_level = QUIET
    return options


def _view(block: Block, place: Place) -> Array:
    return np.ndarray(place.shape, place.dtype, block.host, place.offset)


def _lay_out(
    tensors: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], begin: int
) -> tuple[tuple[Place, ...], int]:
    """A place for each tensor from `begin` on, and where the last one ends."""
    places = []
    for tensor in tensors:
        places.append(Place(tensor.name, tensor.dtype, shapes[tensor.name], begin))
        begin += -(-places[-1].nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(places), begin


def _check_inputs(session: Any, shapes: Mapping[str, tuple[int, ...]], config: SessionConfig) -> None:
    for value, memory in zip(session.get_inputs(), session.get_input_memory_infos(), strict=True):
        if value.name not in shapes:
            continue
        if tuple(value.shape) != shapes[value.name]:
            raise BundleError(f"input {value.name!r} could not be fixed: the graph has {value.shape}")
        if config.provider.needs_libraries and any(word in memory.name.lower() for word in ("cpu", "pinned")):
            raise BundleError(f"input {value.name!r} is read on the host, where nothing is replayed")


def _fixed_outputs(session: Any) -> Mapping[str, tuple[int, ...]]:
    shapes = {value.name: tuple(value.shape) for value in session.get_outputs()}
    for name, shape in shapes.items():
        if any(not isinstance(extent, int) for extent in shape):
            raise BundleError(f"the shape of output {name!r} depends on more than the shapes of the inputs")
    return shapes
