"""The execution providers: what each is asked for, and which forms of weights it can share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.backends.entry import BOUND, EXTERNAL, PLAIN, PREPACKED


@dataclass(frozen=True)
class Provider:
    """One kind of device.

    `execution_provider` is ONNX Runtime's name for it; `options` are its provider options, each stated because the
    defaults are made for one model alone on the device; `forms` are the forms of weights to try, best first.
    `session_per_size` gives every compiled size a session of its own where they share the weights; else one session
    with a free batch serves all sizes, and the weights are there once all the same. `graphs` says that executions can
    be recorded and replayed as CUDA graphs.
    """

    name: str
    execution_provider: str
    forms: tuple[str, ...]
    session_per_size: bool
    options: Mapping[str, str]
    graphs: bool = False

    @property
    def needs_libraries(self) -> bool:
        """Whether libraries of the device have to be loaded before the first session."""
        return self.execution_provider != _CPU

    @property
    def recording(self) -> "Provider":
        """The same for a session that records its execution, and replays it."""
        return replace(self, options={**self.options, "enable_cuda_graph": "1"})

    def chain(self, ordinal: int) -> list[tuple[str, dict[str, str]]]:
        """The providers of a session; an accelerator leaves single nodes it has no kernel for to the CPU."""
        cpu: tuple[str, dict[str, str]] = (_CPU, {})
        if not self.needs_libraries:
            return [cpu]
        return [(self.execution_provider, {**self.options, "device_id": str(ordinal)}), cpu]


_CPU = "CPUExecutionProvider"

PROVIDERS: Mapping[str, Provider] = {
    "cpu": Provider("cpu", _CPU, (PREPACKED, EXTERNAL, PLAIN), session_per_size=True, options={}),
    "cuda": Provider(
        "cuda",
        "CUDAExecutionProvider",
        (BOUND, EXTERNAL, PLAIN),
        # Bound weights would allow it, but each session takes workspaces of cuBLAS and cuDNN besides, tens of MB.
        session_per_size=False,
        options={
            # An exhaustive search costs about a second for every new shape, and what it finds is no faster.
            "cudnn_conv_algo_search": "HEURISTIC",
            # As ONNX Runtime does by itself: matrices of FP32 are multiplied to three digits, and several times faster.
            "use_tf32": "1",
            # Recorded graphs would replay addresses in an arena that other sessions use as well: see `recording`.
            "enable_cuda_graph": "0",
            # Of the arena that a session would have of its own; it has that of the device.
            "arena_extend_strategy": "kSameAsRequested",
            # Copies on another stream than the kernels' race with them.
            "do_copy_in_default_stream": "1",
        },
        graphs=True,
    ),
}


def truth(session: Any) -> str:
    """The execution provider that a session really got; asking for one is no guarantee."""
    return str(session.get_providers()[0])
