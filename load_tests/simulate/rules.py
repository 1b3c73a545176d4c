"""What is compared: a rule is a `SchedulerConfig` and a `ModelPolicy`, written as `edf sizing=fill max_wait_ms=5`.

Where weights do not fit, `weights=waiting` names another rule of residency than the server's.
"""

from typing import NamedTuple

from app.domain.config import ModelPolicy, SchedulerConfig
from load_tests.simulate.residency import RESIDENCIES, Background, Residency


class Rule(NamedTuple):
    """One way to schedule; `policy` is that of every model, but for its weight."""

    label: str
    config: SchedulerConfig
    policy: ModelPolicy
    residency: type[Residency] = Background

    @property
    def discipline(self) -> str:
        """The name of the discipline."""
        return self.config.discipline


def rule(text: str) -> Rule:
    """A discipline, then settings of the scheduler or of every model. Raises `ValueError` naming what is wrong."""
    discipline, *settings = text.split() or [""]
    config: dict[str, str] = {"discipline": discipline}
    policy: dict[str, str] = {}
    weights = "background"
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "weights":
            weights = value
        else:
            (config if key in SchedulerConfig.model_fields else policy)[key] = value
    if weights not in RESIDENCIES:
        raise ValueError(f"weights={weights}: one of {', '.join(RESIDENCIES)}")
    return Rule(
        " ".join([discipline, *settings]),
        SchedulerConfig.model_validate(config),
        ModelPolicy.model_validate(policy),
        RESIDENCIES[weights],
    )


#: The server's defaults first; then the plain rule that looks neither at costs nor at the work ahead, and so on.
DEFAULTS = (
    "fair",
    "fair shed=edf sizing=fill admission=off",
    "fair admission=predict",
    "fair max_wait_ms=5",
    "fifo",
    "fifo shed=edf sizing=fill admission=off",
    "fifo admission=predict",
    "edf",
    "edf sizing=fill admission=off",
    "edf sizing=fill",
    "edf admission=floor",
    "edf max_wait_ms=5",
)
