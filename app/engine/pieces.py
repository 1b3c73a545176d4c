"""A request as it is queued: whole, or cut where it is larger than every compiled size."""

from collections.abc import Callable, Iterator
from math import inf

from app.domain.errors import InvalidRequest
from app.domain.tensors import Tensors
from app.repository.bundle import Bundle
from app.runtime import batch
from app.runtime.pending import PartFuture, PendingRequest
from app.runtime.registry import Generation
from app.scheduling.coalescing import split_rows


class Cutter:
    """Makes queued requests of validated executable inputs. Any thread.

    `max_pieces` is how many pieces of one request a queue takes; `tokens` gives nonzero unique numbers.
    """

    def __init__(self, max_pieces: int, tokens: Iterator[int]) -> None:
        self._max_pieces = max_pieces
        self._tokens = tokens

    def cut(
        self,
        generation: Generation,
        client_inputs: Tensors,
        inputs: Tensors,
        now: float,
        new_future: Callable[[], PartFuture],
        deadline: float = inf,
        committed: bool = False,
    ) -> list[PendingRequest]:
        """The pieces, at least one, each with a future of its own.

        Raises `InvalidRequest` for rows that disagree, are none, cannot be split or are too many, `ShapeNotCompiled`
        for a shape that no variant takes.
        """
        spec, model_id = generation.bundle.spec, generation.model_id
        largest: int | None
        if spec.simple is not None:
            name, axis, key, largest = spec.simple
            rows = inputs[name].shape[axis] or spec.rows_of(inputs)  # which says what is wrong with none
        else:
            rows = spec.rows_of(inputs)
            key = spec.merge_key(inputs, next(self._tokens))
            largest = spec.largest(key.variant)
        if largest is None or rows <= largest:
            return [PendingRequest(model_id, key, rows, now, deadline, inputs, new_future(), committed)]
        if not _keeps_rows(generation.bundle, client_inputs, rows):
            raise InvalidRequest(
                f"model {spec.name!r}: {rows} rows are more than the largest compiled batch size {largest}, and the "
                f"preprocess hook changes the number of rows, so the request cannot be split"
            )
        if rows > largest * self._max_pieces:  # before cutting: a million views take a second to make
            raise InvalidRequest(
                f"model {spec.name!r}: {rows} rows are more than {self._max_pieces} batches of {largest}, which is as "
                f"much as its queue takes",
                reason="too_many_rows",
            )
        cuts = split_rows(rows, largest)
        return [
            PendingRequest(model_id, key, piece, now, deadline, part, new_future(), committed)
            for piece, part in zip(cuts, batch.cut(inputs, spec.inputs, cuts), strict=True)
        ]


def _keeps_rows(bundle: Bundle, client_inputs: Tensors, rows: int) -> bool:
    """Whether the hooks of this very request kept one client row per executable row."""
    if bundle.hooks.preprocess is None:
        return True
    axes = [(spec.name, spec.batch_axis) for spec in bundle.spec.client_inputs if spec.batch_axis is not None]
    return bool(axes) and all(client_inputs[name].shape[axis] == rows for name, axis in axes)
