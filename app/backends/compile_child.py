"""The compile child: one JSON line in, one JSON line out, until nobody asks any more.

Run as `python -m app.backends.compile_child`. It is a process of its own for three reasons: optimising holds the
interpreter lock for up to a second, what it allocates is gone with it, and a form of weights that crashes crashes here.
"""

import ctypes
import errno
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from app.backends.batch_probe import measure
from app.backends.digests import digest_file
from app.backends.entry import PLAIN, StoredEntry
from app.backends.graph import external_files, name_axes, quantises_dynamically, read_graph
from app.backends.graph_trial import GraphTrial
from app.backends.job import sample_from_npz, spec_from_json
from app.backends.optimise import write_form
from app.backends.proof import NotProvedError, Reference, UnprovableError, prove
from app.backends.providers import PROVIDERS
from app.backends.scratch import activation_bytes
from app.backends.sessions import SessionConfig, create_session, sharing_options
from app.backends.slab import open_slab
from app.domain.errors import BundleError

#: Seconds without a job after which the child ends by itself, with exit status 0.
IDLE_SECONDS = 10.0

_PR_SET_PDEATHSIG = 1

Answer = dict[str, Any]


def compile_form(job: Mapping[str, Any]) -> Answer:
    """Write and prove one form of one model, and measure what its rows do to one another."""
    file, target = Path(job["model_file"]), Path(job["target"])
    spec, config = spec_from_json(job["spec"]), _config(job)
    model = read_graph(file)
    layout = name_axes(model, spec, file)
    sample = sample_from_npz(spec, Path(job["sample"]))
    try:
        reference = Reference(model.SerializeToString(), file.parent, spec, sample, config)
    except Exception as error:
        raise BundleError(f"{file}: ONNX Runtime cannot run it: {' '.join(str(error).split())}") from error
    if job["form"] != PLAIN:
        reference.check_provable()
    stored = write_form(job["form"], model, file.parent, target, layout, config)
    if stored.optimised:  # otherwise it is the reference
        stored = replace(stored, runs=prove(target, stored, spec, reference, config))
    probe = measure(target, stored, spec, sample, config, quantised=quantises_dynamically(model))
    scratch = activation_bytes(target, stored, spec, sample, config)
    return {"entry": replace(stored, batch_probe=probe, scratch_bytes=scratch).to_json()}


def try_graphs(job: Mapping[str, Any]) -> Answer:
    """Record a form that is written and proved as CUDA graphs. `spent`, if this process is to be ended, not used."""
    spec, path = spec_from_json(job["spec"]), Path(job["target"])
    entry = StoredEntry.from_json(job["entry"])
    trial = GraphTrial(path, entry, spec, sample_from_npz(spec, Path(job["sample"])), _config(job))
    return {"entry": replace(entry, graphs=trial.run()).to_json(), "spent": trial.spoilt}


def list_external_files(job: Mapping[str, Any]) -> Answer:
    """The external data files that a model names."""
    return {"files": external_files(read_graph(Path(job["model_file"])))}


def digest(job: Mapping[str, Any]) -> Answer:
    """The SHA-256 of a file."""
    return {"digest": digest_file(Path(job["file"]))}


def try_device(job: Mapping[str, Any]) -> Answer:
    """Run one node on the device and put some bytes there: that a provider is listed says nothing about the machine."""
    config = _config(job)
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "one_node", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = create_session(model.SerializeToString(), sharing_options(config), config)
    session.run(None, {"x": np.eye(2, dtype=np.float32)})
    open_slab(Path(__file__), config).close()
    return {}


JOBS: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
    "compile": compile_form,
    "digest": digest,
    "external_files": list_external_files,
    "try_device": try_device,
    "try_graphs": try_graphs,
}


def answer(line: str) -> Answer:
    """The answer to one line: what was asked for, or why it is `refused`, this form is `unfit`, any is `unprovable`."""
    try:
        job = json.loads(line)
        return JOBS[job["job"]](job)
    except BundleError as error:
        return {"refused": error.message}
    except (OSError, MemoryError) as error:  # a full disk says nothing about the form
        remedy = "; free some for the compile cache, or name another cache_dir" if _is_full(error) else ""
        return {"refused": f"{type(error).__name__}: {error}{remedy}"}
    except UnprovableError as error:
        return {"unprovable": str(error)}
    except NotProvedError as error:
        return {"unfit": str(error)}
    except Exception as error:
        return {"unfit": " ".join(f"{type(error).__name__}: {error}".split())}
    finally:
        gc.collect()


def main() -> None:
    """Answer until standard input ends or stays quiet."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # native libraries print what they like
    _end_with_parent()
    gc.freeze()  # what stands for good: collecting it after every job took longer than the jobs of small models
    while select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        answers.write(json.dumps(answer(line)) + "\n")
        answers.flush()


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _config(job: Mapping[str, Any]) -> SessionConfig:
    return SessionConfig(PROVIDERS[job["provider"]], job["ordinal"], job["threads"])


def _end_with_parent() -> None:
    """A server that is killed must not leave a child at work for minutes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.nice(10)  # serving comes first


if __name__ == "__main__":
    main()
