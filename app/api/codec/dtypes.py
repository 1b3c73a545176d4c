"""Narrow floats to and from the numbers that JSON carries: FP16 as numpy has it, BF16 as its raw 16 bits (`uint16`)."""

import ml_dtypes
import numpy as np

from app.domain.tensors import NUMPY_DTYPES, Array


def narrow(wide: Array, datatype: str) -> Array:
    """FP64 values as the floating `datatype`, each rounded once, to nearest even; too large a value becomes infinite.

    BF16 comes back as `uint16`.
    """
    with np.errstate(all="ignore"):
        if datatype == "BF16":
            return _odd_single(wide).astype(ml_dtypes.bfloat16).view(np.uint16)
        return wide.astype(NUMPY_DTYPES[datatype], copy=False)


def widen(array: Array, datatype: str) -> Array:
    """FP16 and BF16 values as FP64, exactly; FP32 and FP64 as they are."""
    if datatype == "BF16":
        array = array.view(ml_dtypes.bfloat16)
    if datatype not in ("FP16", "BF16"):
        return array
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return array.astype(np.float64)


def _odd_single(wide: Array) -> Array:
    """FP64 → FP32 with an odd last bit wherever something was cut off.

    ml_dtypes goes from FP64 to BF16 by way of FP32 and so rounds twice: 1 + 2⁻⁸ + 2⁻⁴⁰ would first become the tie
    1 + 2⁻⁸ and then 1. An odd last bit remembers which side of the tie the value was on.
    """
    single = wide.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    even = (back != wide) & (bits & 1 == 0)
    bits += even & (np.abs(back) < np.abs(wide))
    bits -= even & (np.abs(back) > np.abs(wide))
    return single
