"""What operators may change of a placement while it is in force, and how it is shown."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from app.domain.config import ClusterConfig
from app.domain.errors import InvalidRequest, ModelNotFound
from app.scaleout.controller import Controller, Fills

#: Settings of the section `cluster` that take effect at once.
LIVE = (
    "default_replicas", "hysteresis", "oversubscription", "compaction", "compaction_every", "fill", "quantum_factor",
    "rebalance_compute_seconds",
)  # fmt: skip

#: Those that a model may have for itself: `fill.NAME`, `quantum_factor.NAME`; an empty value takes it away again.
PER_MODEL = ("fill", "quantum_factor")


def changed_replicas(controller: Controller, model: str, count: Any) -> ClusterConfig:
    """With another number of workers for a model. Raises `ModelNotFound`, `InvalidRequest`."""
    _known(controller, model)
    return _validated(controller.config, {"replicas": {**controller.config.replicas, model: count}})


def changed_policy(controller: Controller, wanted: Mapping[str, Any]) -> tuple[ClusterConfig, Fills]:
    """With other settings. Raises `ModelNotFound` or `InvalidRequest`, which names the setting."""
    modes, factors = dict(controller.fills.modes), dict(controller.fills.factors)
    changes: dict[str, Any] = {}
    for key, value in wanted.items():
        name, _, model = key.partition(".")
        if name not in LIVE or (model and name not in PER_MODEL):
            known = ", ".join([*LIVE, *[f"{each}.MODEL" for each in PER_MODEL]])
            raise InvalidRequest(f"no such setting: {key!r:.100}; known are: {known}")
        if not model:
            changes[name] = value
            continue
        _known(controller, model)
        own = cast(dict[str, Any], modes if name == "fill" else factors)
        own.pop(model, None)
        if value not in (None, ""):
            own[model] = getattr(_validated(controller.config, {name: value}), name)
    if not wanted:
        raise InvalidRequest("name a setting and its value")
    return _validated(controller.config, changes), Fills(modes, factors)


def described(controller: Controller) -> dict[str, Any]:
    """The placement in force, for people and programs; no models before the first."""
    placement, told = controller.placement, controller.routes
    config = controller.config
    homes = {} if placement is None else placement.homes
    return {
        "repacks": controller.repacks,
        "warnings": list(controller.warnings),
        "policy": {name: getattr(config, name) for name in LIVE} | {"replicas": dict(config.replicas)},
        "fills": {"modes": dict(controller.fills.modes), "factors": dict(controller.fills.factors)},
        "models": {
            model: {
                "workers": list(workers),
                "backend": "" if told is None else told.models[model],
                "load": round(placement.demands[model].load, 9),
                "weight_bytes": placement.demands[model].nbytes,
            }
            for model, workers in sorted(homes.items())
            if placement is not None
        },
        "workers": {
            worker: {"load": float(load), "weight_bytes": placement.nbytes[worker]}
            for worker, load in ({} if placement is None else placement.loads).items()
            if placement is not None
        },
    }


def _known(controller: Controller, model: str) -> None:
    if controller.placement is None or model not in controller.placement.homes:
        raise ModelNotFound(f"unknown model {model!r:.100}")


def _validated(config: ClusterConfig, changes: Mapping[str, Any]) -> ClusterConfig:
    try:
        return ClusterConfig.model_validate({**config.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{field}: {first['msg']}, got {first['input']!r:.100}") from None
