"""The arena that all sessions on the CPU take their activations from, and giving its memory back."""

from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from app.backends.memory import trim_heap


@cache
def share_arena() -> None:
    """One arena for the activations of all sessions: one execution runs at a time, so it is their maximum, not a sum.

    The arena belongs to ONNX Runtime's environment, of which a process has one.
    """
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT),
        ort.OrtArenaCfg({}),
    )
    # The first region that an arena takes is never given back, whoever made it take it: let that be a small one.
    shrink_arena()


def shrink_arena() -> None:
    """Give back what no tensor is in; 20 ms for 100 MB. No other execution may run meanwhile."""
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _sweeper().run(None, {"x": np.zeros(1, np.float32)}, options)
    trim_heap()


@cache
def _sweeper() -> Any:
    """Shrinking is something that a run does when it ends, so there is a model that does nothing else."""
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
