"""What is compared: a rule is a `SchedulerConfig` and a `ModelPolicy`, written as `edf sizing=fill max_wait_ms=5`.

Where weights do not fit, `weights=waiting` names another rule of residency than the server's.
"""

from typing import NamedTuple

from pydantic import TypeAdapter

from app.domain.config import ModelPolicy, SchedulerConfig
from app.scheduling.value import ValueRule
from load_tests.simulate.residency import RESIDENCIES, Background, Residency


class Rule(NamedTuple):
    """One way to schedule; `policy` is that of every model, but for its weight."""

    label: str
    config: SchedulerConfig
    policy: ModelPolicy
    residency: type[Residency] = Background
    value: ValueRule = ValueRule()
    """What `sizing=value` goes by."""

    @property
    def discipline(self) -> str:
        """The name of the discipline."""
        return self.config.discipline


#: Understands the parameters of `ValueRule` as texts.
_VALUE = TypeAdapter(ValueRule)


def rule(words: str) -> Rule:
    """A discipline, then settings of scheduler, models or `ValueRule`. Raises `ValueError` naming what is wrong."""
    discipline, *settings = words.split() or [""]
    config: dict[str, str] = {"discipline": discipline}
    policy: dict[str, str] = {}
    residency, value = "background", {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if key == "weights":
            residency = text
        elif key in ValueRule._fields:
            value[key] = text
        else:
            (config if key in SchedulerConfig.model_fields else policy)[key] = text
    if residency not in RESIDENCIES:
        raise ValueError(f"weights={residency}: one of {', '.join(RESIDENCIES)}")
    return Rule(
        " ".join([discipline, *settings]),
        SchedulerConfig.model_validate(config),
        ModelPolicy.model_validate(policy),
        RESIDENCIES[residency],
        _VALUE.validate_python(value),
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

#: What net value is measured against: the plain rules of each discipline, a fixed window of 5 ms, and the defaults.
AGAINST_VALUE = (
    "fair shed=edf sizing=fill admission=off",
    "fifo shed=edf sizing=fill admission=off",
    "edf sizing=fill admission=off",
    "fifo shed=edf sizing=fill max_wait_ms=5 admission=off",
    "fair",
    "fair admission=predict",
    "edf",
    "edf admission=floor",
    "edf max_wait_ms=5",
    "edf sizing=value dearest=1",
    "edf sizing=value",
    "fair sizing=value",
)
