"""Measuring how far the answer for a row depends on the rows beside it; in the compile child, where a crash is cheap.

The same row runs at the same size before and behind others, among copies of itself (which is padding by repetition),
and before padding of zeros. Behind others too, because what runs along the batch axis, as time does, changes nothing in
the first row; and at both ends of a large batch, because what counts the rows may leave the first few alone. Answers
are compared at the same place: where rows are independent they are equal to the last bit there, while at another place
another kernel may round otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import cycle, islice
from math import inf
from pathlib import Path

import numpy as np

from app.backends.compare import difference, magnitude, numbers
from app.backends.entry import StoredEntry
from app.backends.execution import Run, open_run
from app.backends.probes import pools
from app.backends.sessions import SessionConfig
from app.domain.batch_safety import BatchProbe, Beside, Deviation
from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Tensors

#: Rows for a model whose one compiled size is 1: nothing is merged there, but large requests are cut.
_CUT_ROWS = 2


class _NotABatchError(Exception):
    """An output whose extent is not the batch size."""

    def __init__(self, deviation: Deviation) -> None:
        super().__init__(deviation.fault)
        self.deviation = deviation


def measure(
    path: Path, entry: StoredEntry, spec: ModelSpec, sample: Tensors | None, config: SessionConfig, *, quantised: bool
) -> BatchProbe:
    """What the sessions of an entry answer for one row in different company; empty for a model that never coalesces.

    `quantised` as in `BatchProbe`.
    """
    deviations: list[Deviation] = []
    failure = ""
    for variant in spec.variants if spec.coalescible else ():

        def opened(size: int, variant: Variant = variant) -> Run:
            return open_run(path, entry, spec, config, variant.key, size)

        found = _measure(spec, variant, sample, opened)
        if isinstance(found, str):
            failure = failure or f"variant {variant.key!r}: {found}"
        else:
            deviations += found
    return BatchProbe(tuple(deviations), failure, quantised)


def _measure(
    spec: ModelSpec, variant: Variant, sample: Tensors | None, opened: Callable[[int], Run]
) -> list[Deviation] | str:
    """The deviations of one variant, or why none could be measured."""
    failure = ""
    for pool in pools(spec, variant, sample):
        try:
            return list(_deviations(spec, variant, pool, opened))
        except Exception as error:  # whatever ONNX Runtime raises for inputs that the model does not take
            failure = failure or " ".join(str(error).split())
    return failure


def _deviations(spec: ModelSpec, variant: Variant, pool: Tensors, opened: Callable[[int], Run]) -> Iterator[Deviation]:
    smallest: Tensors = {}
    looked = False
    for size, rows in _sizes(spec.sizes(variant.key), thorough=variant is spec.variants[0]):
        company = _Company(spec, pool, opened(size), rows, f"variant {variant.key!r}, {rows} rows")
        try:
            answer = company.first
            if rows > 1:
                yield from company.glance() if looked else company.look()
                looked = True
            yield from company.across(smallest)
            smallest = smallest or answer
        except _NotABatchError as error:
            yield error.deviation


def _sizes(sizes: Sequence[int], *, thorough: bool) -> list[tuple[int, int]]:
    """(Compiled size, rows) to look at; size 0 has a free batch.

    The smallest size with neighbours tells most at the least cost. The largest, and the smallest of all, are looked at
    for one variant only: what depends on the batch does so whatever the other extents are, but an extent that is a
    constant is right at one size, and a scale that is taken over the batch moves most where there are many rows.
    """
    merging = [size for size in sizes if size > 1]
    if not merging:
        return [(1, 1), (0, _CUT_ROWS)]
    chosen = {*sizes[:1], *merging[:1], *merging[-1:]} if thorough else merging[:1]
    return [(size, size) for size in sorted(chosen)]


class _Company:
    """Batches of one size, with the first row of the pool in each. An answer is what that row gets, by output."""

    def __init__(self, spec: ModelSpec, pool: Tensors, run: Run, rows: int, place: str) -> None:
        self._spec = spec
        self._pool = pool
        self._run = run
        self._rows = rows
        self._place = place
        self._zeros = spec.rows_of(pool) - 1  # which row of the pool
        self._others = tuple(islice(cycle(range(1, self._zeros)), rows - 1))
        self._scales: dict[str, float] = {}

    @cached_property
    def first(self) -> Tensors:
        """The answer before others. Raises `ValueError` when it holds no number that could change."""
        answer = _row(self._spec, self._outputs(Beside.NEIGHBOURS, [0, *self._others]), 0)
        for name, array in answer.items():
            if array.dtype.kind == "f" and array.size and not np.isfinite(array).any():
                raise ValueError(f"output {name!r} holds no number for what it was tried with")
        return answer

    def look(self) -> Iterator[Deviation]:
        """How far the answers in other company are apart. Raises like `first`, or `_NotABatchError`."""
        count = self._rows - 1
        backwards = islice(cycle(range(self._zeros - 1, 0, -1)), count)
        first, behind = self.first, self._outputs(Beside.NEIGHBOURS, [*self._others, 0])
        others = self._outputs(Beside.NEIGHBOURS, [*backwards, 0])
        copies = self._outputs(Beside.COPIES, [0] * self._rows)
        # The opposite of the first row, where it is made of truths or integers: what is masked by place shows in one.
        opposite = self._outputs(Beside.COPIES, [1] * self._rows)
        last = _row(self._spec, behind, count)
        yield from self._zeros_apart(first)
        yield from self._apart(Beside.NEIGHBOURS, last, _row(self._spec, others, count))
        yield from self._apart(Beside.COPIES, first, _row(self._spec, copies, 0))
        yield from self._apart(Beside.COPIES, last, _row(self._spec, copies, count))
        yield from self._apart(Beside.PLACE, first, last)
        yield from self._apart(Beside.PLACE, _row(self._spec, opposite, 0), _row(self._spec, opposite, count))

    def glance(self) -> Iterator[Deviation]:
        """How far the answers among copies of itself are from the first, and from one another. Raises like `look`."""
        copies = self._outputs(Beside.COPIES, [0] * self._rows)
        one = _row(self._spec, copies, 0)
        yield from self._apart(Beside.COPIES, self.first, one)
        yield from self._apart(Beside.PLACE, one, _row(self._spec, copies, self._rows - 1))

    def across(self, smallest: Tensors) -> Iterator[Deviation]:
        """How far the answer is from that of another size; nothing where there is none."""
        return self._apart(Beside.SIZE, smallest, self.first)

    def _zeros_apart(self, first: Tensors) -> Iterator[Deviation]:
        try:
            padded = self._outputs(Beside.ZEROS, [0, *[self._zeros] * (self._rows - 1)])
        except _NotABatchError as error:
            yield error.deviation
        except Exception as error:
            fault = f"the execution fails with padding of zeros: {' '.join(str(error).split())}"
            yield self._fault(self._spec.outputs[0].name, Beside.ZEROS, fault)
        else:
            yield from self._apart(Beside.ZEROS, first, _row(self._spec, padded, 0))

    def _apart(self, beside: Beside, one: Tensors, other: Tensors) -> Iterator[Deviation]:
        """Where and how far two answers are apart."""
        for name, left in one.items():
            right = other[name]
            if left.shape != right.shape:
                yield self._fault(name, beside, f"output {name!r} of a row has another shape with {beside}")
            elif left.dtype.kind != "f":
                if left.size and (changed := float(np.mean(left != right))):
                    yield Deviation(name, beside, self._place, changed, 1.0)
            elif (apart := difference(left, right)) == inf:
                yield self._fault(name, beside, f"output {name!r} of a row is a number or none, depending on {beside}")
            elif apart:
                yield Deviation(name, beside, self._place, apart, self._scales[name])

    def _outputs(self, beside: Beside, taken: Sequence[int]) -> Tensors:
        """What a batch of the `taken` rows of the pool gives. Raises `_NotABatchError`."""
        inputs = {
            each.name: self._pool[each.name]
            if each.batch_axis is None
            else np.take(self._pool[each.name], taken, each.batch_axis)
            for each in self._spec.inputs
        }
        outputs = self._run(inputs)
        for each in self._spec.outputs:
            array = numbers(each, outputs[each.name])
            if (extent := array.shape[each.batch_axis or 0]) != self._rows:
                fault = f"output {each.name!r} has extent {extent} on its batch axis in a batch of {self._rows} rows"
                raise _NotABatchError(self._fault(each.name, beside, fault))
            if array.dtype.kind == "f":
                self._scales[each.name] = max(magnitude(array), self._scales.get(each.name, 0.0))
        return outputs

    def _fault(self, output: str, beside: Beside, fault: str) -> Deviation:
        return Deviation(output, beside, self._place, inf, 1.0, fault)


def _row(spec: ModelSpec, outputs: Tensors, place: int) -> Tensors:
    """The answer of the row at a place."""
    return {
        each.name: np.take(numbers(each, outputs[each.name]), [place], each.batch_axis or 0) for each in spec.outputs
    }
