"""Whether requests may share an execution: what was measured of a model's rows, and the verdict on it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Literal

from app.domain.tensors import TensorSpec

Padding = Literal["zeros", "repeat"]

#: Largest deviation that is rounding, relative to the range of the output; of what is no number, none is.
ROUNDING = {"FP64": 1e-5, "FP32": 1e-5, "FP16": 4 * 2**-10, "BF16": 4 * 2**-7}

#: Largest deviation at another size, or another place in the batch, that is not worth a warning, relative to the range:
#: other kernels run there, and what they round differently is amplified on its way through the model.
OTHER_KERNELS = 1e-3

#: Largest deviation, relative to the range, of a model that is batched all the same.
APPROXIMATE_LIMIT = 0.05


class Beside(StrEnum):
    """What was changed around the row whose answers were compared."""

    NEIGHBOURS = "other rows beside it"
    COPIES = "copies of itself beside it"
    ZEROS = "padding of zeros beside it"
    PLACE = "another place in the batch"
    SIZE = "another batch size"


class Verdict(StrEnum):
    """How far the answer for a row depends on the rows beside it."""

    SAFE = "safe"
    APPROXIMATE = "approximate"
    UNSAFE = "unsafe"
    UNVERIFIED = "unverified"
    OFF = "off"


@dataclass(frozen=True)
class Deviation:
    """How far one output moved for the same row when something `beside` it changed.

    `difference` is the largest absolute one, `scale` the largest magnitude that the output had: its range, counted
    from zero. For an output of integers, booleans or text the difference is the fraction of the row's elements that
    changed, and the scale 1. `fault` tells what no number can, with a difference of infinity. `place` names the variant
    and the batch size.
    """

    output: str
    beside: Beside
    place: str
    difference: float
    scale: float
    fault: str = ""

    @property
    def figure(self) -> float:
        """The difference as a part of the range."""
        return 0.0 if self.difference == 0 else inf if self.scale == 0 else self.difference / self.scale


@dataclass(frozen=True)
class BatchProbe:
    """What was measured when a model was compiled.

    Deviations of zero are left out. `failure` says why something could not be measured. `quantised` says that the graph
    takes quantisation scales from the values of the run: then a deviation within the limit is the price of that, while
    in any other graph it shows that rows reach one another, and with other inputs it may be as large as it likes.
    """

    deviations: tuple[Deviation, ...] = ()
    failure: str = ""
    quantised: bool = False


@dataclass(frozen=True)
class BatchCheck:
    """What a bundle asks to be done about it. A deviation within `atol + rtol * range` counts as none."""

    verify: Literal["off", "warn", "enforce"] = "enforce"
    rtol: float | None = None
    atol: float = 0.0


@dataclass(frozen=True)
class BatchSafety:
    """The verdict on one loaded model. `figure` is the largest deviation as a part of the range; None for no figure.

    `reason` is empty where there is nothing to warn of.
    """

    verdict: Verdict
    reason: str = ""
    figure: float | None = None


def judge(outputs: Sequence[TensorSpec], probe: BatchProbe, check: BatchCheck, padding: Padding) -> BatchSafety:
    """The verdict on a model with these outputs whose partial batches are filled by `padding`."""
    if check.verify == "off":
        return BatchSafety(Verdict.OFF, "the manifest turns verification off (batching.verify)")
    rounding = {each.name: ROUNDING.get(each.datatype, 0.0) if check.rtol is None else check.rtol for each in outputs}
    met = [each for each in probe.deviations if each.beside is not Beside.ZEROS or padding == "zeros"]
    beyond = [each for each in met if each.difference > check.atol + rounding[each.output] * each.scale]
    warned = [each for each in beyond if each.beside in _KERNELS and each.figure > OTHER_KERNELS]
    moved = [each for each in beyond if each.beside not in _KERNELS]
    moved += [each for each in warned if each.beside is Beside.PLACE and each.figure > APPROXIMATE_LIMIT]
    if moved:
        return _dependent(moved, check, quantised=probe.quantised)
    if probe.failure:
        reason = f"batched as declared, it could not be tried ({probe.failure}); a sample.npz in the bundle may help"
        return BatchSafety(Verdict.UNVERIFIED, reason)
    figure = max((each.figure for each in met if each.beside not in _KERNELS), default=0.0)
    return BatchSafety(Verdict.SAFE, _told(warned) if warned else "", figure)


#: Where a deviation may come from other kernels than from other rows.
_KERNELS = (Beside.PLACE, Beside.SIZE)


def _dependent(moved: Sequence[Deviation], check: BatchCheck, *, quantised: bool) -> BatchSafety:
    worst = max(each.figure for each in moved)
    if quantised and worst <= APPROXIMATE_LIMIT:
        return BatchSafety(Verdict.APPROXIMATE, f"{_told(moved)}; batched all the same", worst)
    if check.verify == "enforce":
        consequence = "requests run alone, at their own number of rows"
    else:
        consequence = "batched all the same (batching.verify is warn)"
    if all(each.beside is Beside.ZEROS for each in moved):
        consequence += "; batching.padding: repeat would mend it"
    return BatchSafety(Verdict.UNSAFE, f"{_told(moved)}; {consequence}", None if worst == inf else worst)


def _told(deviations: Iterable[Deviation]) -> str:
    """The worst of them in words."""
    worst = max(deviations, key=lambda each: each.figure)
    change = f"output {worst.output!r} of a row changes by {worst.figure:.2g} of its range with {worst.beside}"
    return f"{worst.fault or change} ({worst.place})"
