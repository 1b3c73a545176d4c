"""What is compared: a rule is a `SchedulerConfig` and a `ModelPolicy`, written as `edf sizing=fill max_wait_ms=5`."""

from typing import NamedTuple

from app.domain.config import ModelPolicy, SchedulerConfig


class Rule(NamedTuple):
    """One way to schedule; `policy` is that of every model, but for its weight."""

    label: str
    config: SchedulerConfig
    policy: ModelPolicy

    @property
    def discipline(self) -> str:
        """The name of the discipline."""
        return self.config.discipline


def rule(text: str) -> Rule:
    """A discipline, then settings of the scheduler or of every model. Raises `ValueError` naming what is wrong."""
    discipline, *settings = text.split() or [""]
    config: dict[str, str] = {"discipline": discipline}
    policy: dict[str, str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        (config if key in SchedulerConfig.model_fields else policy)[key] = value
    return Rule(
        " ".join([discipline, *settings]), SchedulerConfig.model_validate(config), ModelPolicy.model_validate(policy)
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
