"""The models on the device. Dispatcher thread only: the state is owned, not locked."""

from dataclasses import dataclass

from app.backends.base import LoadedModel, Prepared
from app.domain.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """One model on the device: its weights in bytes and the execution provider that runs it."""

    model_id: str
    weight_bytes: int
    provider: str


class WeightCache:
    """Every loaded model by its `model_id`. All of them stay resident."""

    def __init__(self) -> None:
        self._loaded: dict[str, LoadedModel] = {}
        self._snapshot: tuple[ResidentModel, ...] = ()

    def put(self, model_id: str, prepared: Prepared) -> LoadedModel:
        """Take over a prepared model."""
        model = self._loaded[model_id] = prepared.load()
        self._publish()
        return model

    def acquire(self, model_id: str) -> LoadedModel:
        """The model, on the device. Raises `ModelNotFound` when it was unloaded."""
        try:
            return self._loaded[model_id]
        except KeyError:
            raise ModelNotFound("the model was unloaded") from None

    def drop(self, model_id: str) -> None:
        """Free a model's weights; harmless when it has none."""
        model = self._loaded.pop(model_id, None)
        if model is not None:
            model.unload()
            self._publish()

    def drop_all(self) -> None:
        """Free everything."""
        for model_id in tuple(self._loaded):
            self.drop(model_id)

    def snapshot(self) -> tuple[ResidentModel, ...]:
        """What is resident; any thread (the tuple is swapped whole)."""
        return self._snapshot

    def _publish(self) -> None:
        self._snapshot = tuple(
            ResidentModel(model_id, model.weight_bytes, model.provider) for model_id, model in self._loaded.items()
        )
