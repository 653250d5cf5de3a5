"""Tolerances: the difference between two results that their formats allow."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np

from spaninfer_op_reference.arrays import Floats

UNITS = MappingProxyType(
    {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
)
"""The largest relative error of rounding one number, by format."""

_LENGTH = 4096  # operators sum over channels or keys: a few thousand terms
_MARGIN = 2  # two sums, or a rounded result beside rounded inputs


def tolerance(dtype: str) -> float:
    """Return the relative error that an operator computed in `dtype` may have.

    Rounding errors of a sum have random signs, so they grow with the square root of its length:
    unit * sqrt(4096) * 2 where sums are kept in the format itself. Kernels for 16-bit formats sum
    in float32 and round inputs, intermediate values and result: a handful of units, not of sums.
    """
    if dtype not in UNITS:
        raise ValueError(f"dtype is {dtype!r}; there are limits for {', '.join(UNITS)}")
    growth = math.sqrt(_LENGTH) if dtype in ("float64", "float32") else 4
    return UNITS[dtype] * growth * _MARGIN


def relative_error(actual: Floats, expected: Floats) -> float:
    """Return the largest difference over the root mean square of the expected values, in float64.

    Not number by number: a sum that cancels to nearly zero carries the error of its terms. An
    expectation of zeros is compared absolutely; NaN or infinity in either is an infinite error.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {actual.shape}, but {expected.shape} is expected")
    if expected.size == 0:
        return 0.0
    if not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return math.inf
    wide = expected.astype(np.float64)
    size = math.sqrt(float((wide * wide).mean())) or 1.0
    return float(np.abs(actual.astype(np.float64) - wide).max()) / size


def close(actual: Floats, expected: Floats, dtype: str) -> bool:
    """Return True if `actual`, computed in `dtype`, is as close as its format allows."""
    return relative_error(actual, expected) <= tolerance(dtype)
