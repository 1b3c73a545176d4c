"""The classification extension: the best classes of an output, per batch row, as text."""

from math import prod

import numpy as np

from app.api.codec.json import object_array
from app.api.codec.wording import show_shape
from app.domain.errors import InvalidRequest
from app.domain.tensors import Array, TensorSpec

#: Most elements of an output that are ranked for one request.
MAX_ELEMENTS = 1_000_000


def classify(array: Array, spec: TensorSpec, top: int, labels: tuple[str, ...]) -> Array:
    """The `top` classes of each row: BYTES of shape [rows, min(top, classes)], without the rows if there is no batch.

    An element is `value:index` or `value:index:label`, floats with six decimals, best first, equal values by index,
    NaN last; a row is everything along the batch axis, flattened. Raises `InvalidRequest` above `MAX_ELEMENTS`.
    """
    if array.size > MAX_ELEMENTS:
        raise InvalidRequest(
            f"classification of output {spec.name!r}: {show_shape(array.shape)} has {array.size} elements, "
            f"more than {MAX_ELEMENTS}"
        )
    if spec.batch_axis is None:
        return _best(array.reshape(-1), top, labels)
    rows = np.moveaxis(array, spec.batch_axis, 0)
    ranked = [_best(row.reshape(-1), top, labels) for row in rows]
    shape = (len(rows), min(top, prod(rows.shape[1:])))
    return np.concatenate([np.empty(0, np.object_), *ranked]).reshape(shape)


def _best(values: Array, top: int, labels: tuple[str, ...]) -> Array:
    # ~x turns the order of integers round where -x would overflow; -x keeps NaN at the end.
    floating = values.dtype.kind == "f"
    order = np.argsort(-values if floating else ~values, kind="stable")[:top]
    form = "%.6f:%d" if floating else "%d:%d"
    texts = [form % (value, index) for value, index in zip(values[order].tolist(), order.tolist(), strict=True)]
    named = [text + f":{labels[i]}" if i < len(labels) else text for text, i in zip(texts, order.tolist(), strict=True)]
    return object_array([text.encode() for text in named])
