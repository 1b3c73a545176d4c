"""Which models a meta model may call: checked whenever either of the two comes."""

from collections.abc import Mapping

from app.domain.errors import BundleError
from app.domain.model import ModelSpec
from app.runtime.registry import ModelEntry


def check_calls(name: str, spec: ModelSpec, entries: Mapping[str, ModelEntry]) -> None:
    """Raise `BundleError` where a meta model calls a meta model, the one that comes or one that is there.

    A sub-model that is not loaded is no error: requests are refused until it comes.
    """
    served = {other: entry.generation.bundle.spec for other, entry in entries.items() if entry.generation is not None}
    served[name] = spec
    for caller, each in served.items():
        for called in each.meta_models or ():
            if name in (caller, called) and called in served and served[called].is_meta:
                raise BundleError(
                    f"meta model {caller!r} calls {called!r}, which is a meta model too: let it call plain models only"
                )
