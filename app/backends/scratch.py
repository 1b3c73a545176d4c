"""Measuring the activation memory of a model in isolation: in the compile child, where nothing else runs."""

from pathlib import Path

from app.backends.cuda import cuda_driver
from app.backends.entry import StoredEntry
from app.backends.execution import Run, open_run
from app.backends.memory import private_bytes
from app.backends.probes import probes
from app.backends.proof import FREE_ROWS
from app.backends.sessions import SessionConfig, shrink_arenas
from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Tensors


def activation_bytes(
    path: Path, entry: StoredEntry, spec: ModelSpec, sample: Tensors | None, config: SessionConfig
) -> int:
    """By how much two runs of the largest size let the process grow, the worst of all variants.

    On an accelerator, by how much what is in use there grows. Twice, since a second run may need more than the first;
    from a shrunken arena each time, so that the order does not matter; at the largest size, since activations grow with
    the batch. 0 where the system does not say.
    """
    return max([_grown_by(path, entry, spec, variant, sample, config) for variant in spec.variants], default=0)


def _grown_by(
    path: Path, entry: StoredEntry, spec: ModelSpec, variant: Variant, sample: Tensors | None, config: SessionConfig
) -> int:
    sizes = spec.sizes(variant.key)
    size, rows = (sizes[-1], sizes[-1]) if sizes else (0, FREE_ROWS[-1])
    run = open_run(path, entry, spec, config, variant.key, size)
    for inputs in probes(spec, variant, rows, sample):
        shrink_arenas(config)
        before = in_use(config)
        if _runs(run, inputs):
            return max(in_use(config) - before, 0)
    return 0


def in_use(config: SessionConfig) -> int:
    """Bytes of this process; on an accelerator those of whomever, since it does not say of whom."""
    return cuda_driver(config.ordinal).memory().in_use if config.provider.needs_libraries else private_bytes()


def _runs(run: Run, inputs: Tensors) -> bool:
    """Run twice; False where the model does not take these inputs."""
    try:
        run(inputs)
        run(inputs)
    except Exception:  # whatever ONNX Runtime raises: the proof has said what there is to say
        return False
    return True
