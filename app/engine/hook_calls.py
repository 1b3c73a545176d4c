"""Calling a bundle's hooks, in a hook thread: what they are given, and the checks on what they return."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from app.domain.errors import HookFailed, InvalidRequest, ServingError
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors, TensorSpec
from app.repository.hooks import Hook, HookContext

logger = logging.getLogger(__name__)


def preprocess(hook: Hook, inputs: Tensors, context: HookContext, spec: ModelSpec) -> Tensors:
    """Run the hook and check that the executable can take what it returned. A `ValueError` is the client's fault."""
    try:
        tensors = _run_hook(hook, _writable(inputs), context, "preprocess")
    except ValueError as error:
        raise InvalidRequest(f"preprocess of model {spec.name!r}: {error}") from error
    prepared = checked(f"preprocess of model {spec.name!r} returned", tensors, spec.inputs)
    spec.check_text(prepared)
    return prepared


def aligned(tensors: Tensors) -> dict[str, Array]:
    """Views of the request body begin anywhere; native code, which hooks may call, is promised aligned elements."""
    return {name: array if array.flags.aligned else array.copy() for name, array in tensors.items()}


def _writable(tensors: Tensors) -> Tensors:
    """Views of the request body are read-only: a hook that works in place gets a copy, whatever the wire form was."""
    return {name: array if array.flags.writeable else array.copy() for name, array in aligned(tensors).items()}


def postprocess(hook: Hook, outputs: Tensors, context: HookContext, spec: ModelSpec) -> Tensors:
    """Run the hook and check that it returned what the manifest promises to clients."""
    try:
        tensors = _run_hook(hook, outputs, context, "postprocess")
    except ValueError as error:
        logger.exception("postprocess of model %s failed", spec.name)
        raise HookFailed(f"postprocess of model {spec.name!r} failed") from error
    return checked(f"postprocess of model {spec.name!r} returned", tensors, spec.client_outputs)


def _run_hook(hook: Hook, tensors: Tensors, context: HookContext, name: str) -> Tensors:
    try:
        return hook(tensors, context)
    except (ServingError, ValueError):
        raise
    except BaseException as error:  # also SystemExit: a hook ends its own request, never the thread
        logger.exception("%s of model %s failed", name, context.model)
        raise HookFailed(f"{name} of model {context.model!r} failed") from error


def checked(told: str, tensors: object, specs: Sequence[TensorSpec]) -> Tensors:
    """The declared ones of the tensors that user code gave, and no others; `told` begins the complaint about them.

    Raises `HookFailed` when one is not as declared.
    """
    if not isinstance(tensors, Mapping):
        raise HookFailed(f"{told} {type(tensors).__name__}, not a dict of arrays")
    for spec in specs:
        array = tensors.get(spec.name)
        if not isinstance(array, np.ndarray):
            given = "nothing" if array is None else f"a {type(array).__name__}"
        elif array.dtype != spec.dtype or not spec.accepts(array.shape):
            given = f"{array.dtype} {list(array.shape)}"
        else:
            continue
        raise HookFailed(
            f"{told} {given} for tensor {spec.name!r}; the manifest declares {spec.datatype} {list(spec.shape)}"
        )
    return {spec.name: tensors[spec.name] for spec in specs}
