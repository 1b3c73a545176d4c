"""Where in the body of a request its inputs are, and the arrays over it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from app.api.exchange import Buffer
from app.domain.tensors import Array


class Slot(NamedTuple):
    """Where in a body one input is, and what it is: bytes `start` to `stop` hold `shape` elements of `dtype`.

    `unpack` builds the array where a plain view of the bytes will not do.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int
    unpack: "Unpack | None" = None


Unpack = Callable[[Buffer, Slot], Array]


def read_slots(slots: tuple[Slot, ...], body: Buffer) -> dict[str, Array]:
    """The arrays of a body that is long enough: views of it, so often read-only, at any alignment.

    Raises `InvalidRequest` naming the input.
    """
    arrays: dict[str, Array] = {}
    for slot in slots:
        name, dtype, shape, start, _, unpack = slot
        if unpack is None:
            arrays[name] = np.ndarray(shape, dtype, body, start)
        else:
            arrays[name] = unpack(body, slot)
    return arrays
