"""The arenas that all sessions of a device take their activations from, and giving their memory back."""

from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from app.backends.memory import bound_heaps, trim_heap

_CUDA = "CUDAExecutionProvider"

#: How the arena of a device grows: doubling would take memory that the next model needs.
_BY_WHAT_IS_ASKED = 1


@cache
def share_arena() -> None:
    """One arena for the activations of all sessions: one execution runs at a time, so it is their maximum, not a sum.

    The arena belongs to ONNX Runtime's environment, of which a process has one.
    """
    bound_heaps()
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT),
        ort.OrtArenaCfg({}),
    )
    # The first region that an arena takes is never given back, whoever made it take it: let that be a small one.
    shrink_arena()


@cache
def share_cuda_arena(ordinal: int, most_bytes: int) -> None:
    """The same on a CUDA device, with a bound on its bytes; 0 for none. The provider's libraries have to be loaded.

    No CUDA graph may use it: a graph writes to the addresses it was recorded with, which others have been given since.
    """
    ort.create_and_register_allocator_v2(
        _CUDA,
        ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ordinal, ort.OrtMemType.DEFAULT),
        {"device_id": str(ordinal)},
        ort.OrtArenaCfg({"max_mem": most_bytes, "arena_extend_strategy": _BY_WHAT_IS_ASKED}),
    )


def shrink_arena() -> None:
    """Give back what no tensor is in; 20 ms for 100 MB. No other execution may run meanwhile."""
    _sweep("cpu:0", "CPUExecutionProvider")
    trim_heap()


def shrink_cuda_arena(ordinal: int) -> None:
    """The same on a CUDA device whose arena is shared."""
    _sweep(f"gpu:{ordinal}", _CUDA, ordinal)


def _sweep(arena: str, provider: str, ordinal: int = 0) -> None:
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", arena)
    _sweeper(provider, ordinal).run(None, {"x": np.zeros(1, np.float32)}, options)


@cache
def _sweeper(provider: str, ordinal: int) -> Any:
    """Shrinking is something that a run does when it ends, so there is a model that does nothing else."""
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    where = {"device_id": str(ordinal)} if provider == _CUDA else {}
    return ort.InferenceSession(model.SerializeToString(), options, providers=[(provider, where)])
