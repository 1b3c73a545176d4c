"""Names for the settings that a model is served by: two measurements compare only where they are equal."""

import hashlib

from app.domain.config import ModelPolicy, SchedulerConfig
from app.runtime.registry import Generation

#: Policies whose digests are kept; more than a server ever has at once.
_MOST = 4096


class PolicyDigests:
    """Digests of the policy in force together with the settings of the scheduler. Event loop only."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config.model_dump_json(exclude={"models"})
        self._known: dict[tuple[ModelPolicy, str], str] = {}

    def of(self, generation: Generation) -> str:
        """Equal for equal settings, whatever the model; the padding is the bundle's where no policy sets it."""
        key = (generation.policy, generation.bundle.spec.padding)
        digest = self._known.get(key)
        if digest is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            text = f"{key[0].model_dump_json()} {key[1]} {self._config}"
            digest = self._known[key] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return digest
