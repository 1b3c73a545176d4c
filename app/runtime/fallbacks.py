"""The escape route: which model answers when another cannot in time, and what must hold for that."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.domain.tensors import TensorSpec
from app.runtime.registry import Generation, ModelEntry

logger = logging.getLogger(__name__)


def fallback_of(generation: Generation) -> str | None:
    """The name of the model that the policy, or else the manifest, names as fallback."""
    return generation.policy.fallback or generation.bundle.spec.fallback


def can_stand_in(spec: ModelSpec, other: ModelSpec) -> bool:
    """Whether a client of `spec` cannot tell `other` from it: the same client-facing tensors, in whatever order."""
    return _same(spec.client_inputs, other.client_inputs) and _same(spec.client_outputs, other.client_outputs)


def check_fallbacks(name: str, generation: Generation, entries: Mapping[str, ModelEntry]) -> None:
    """Check the fallback of a model that comes, or changes, and look at those that name it as theirs.

    Raises `BundleError` for a chain, a model that falls back to itself, or tensors that differ. A fallback that is
    not loaded is none; where it comes later and does not do, that is logged, since it is not its own fault, and the
    other model goes on without.
    """
    own = fallback_of(generation)
    if own == name:
        raise BundleError(f"model {name!r} is its own fallback: name another one")
    if own is not None and (fallback := _served(own, entries)) is not None:
        _check_pair(name, generation, own, fallback)
    for user, entry in entries.items():
        if user != name and entry.generation is not None and fallback_of(entry.generation) == name:
            try:
                _check_pair(user, entry.generation, name, generation)
            except BundleError as error:
                logger.warning("%s: that fallback is not used", error.message)


def _served(name: str, entries: Mapping[str, ModelEntry]) -> Generation | None:
    entry = entries.get(name)
    return entry.generation if entry is not None else None


def _check_pair(name: str, generation: Generation, other_name: str, other: Generation) -> None:
    further = fallback_of(other)
    if further is not None:
        raise BundleError(
            f"model {name!r} falls back to {other_name!r}, which falls back to {further!r}: one step only, take one out"
        )
    if not can_stand_in(generation.bundle.spec, other.bundle.spec):
        raise BundleError(
            f"model {name!r} falls back to {other_name!r}, whose client-facing tensors differ: {_listed(other)} are "
            f"not {_listed(generation)}"
        )


def _same(some: Sequence[TensorSpec], others: Sequence[TensorSpec]) -> bool:
    return {each.name: each for each in some} == {each.name: each for each in others}


def _listed(generation: Generation) -> str:
    spec = generation.bundle.spec
    return f"({_signature(spec.client_inputs)}) -> ({_signature(spec.client_outputs)})"


def _signature(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(f"{each.name}: {each.datatype} {list(each.shape)}" for each in specs)
