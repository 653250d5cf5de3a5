"""Log-sum-exps: what `merge` must know of attention over some of the keys.

lse[T H], float32, is the natural logarithm of what the softmax of each row and head divides by: the
sum of the exponentials of its scores, scaled, capped and biased; minus infinity where no key is
seen. Parts that `merge` then joins were all computed with two things in mind:

* A sink is a score like others, so that a part with its lse is complete. Sinks are given to one of
  the parts only, to one that has keys.
* A row of a part stands at the part's last positions; windows and the distances of ALiBi are
  counted from there. Where a row truly stands d positions behind that place, slope * d is to be
  taken off its lse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from spaninfer_kernel_launch import Result, ShapeError


def results_of(
    shape: tuple[int, int, int], dtype: object, *, alignment: int, lse: bool
) -> tuple[Result, ...]:
    """Return what attention writes: out[T H E], and with `lse` lse[T H]."""
    out: Result = ("out", shape, dtype, alignment)
    return (out, ("lse", shape[:2], np.float32, 1)) if lse else (out,)


def pair_of(out: Any, *, lse: bool) -> tuple[Any, Any]:
    """Return the arrays that the caller gives for out and lse; None for those not given.

    Raises ShapeError for an `out` that is no pair where there are two.
    """
    if not lse:
        return out, None
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise ShapeError("out is no pair; with lse=True it is a tuple of two arrays, out and lse")
    first, second = out
    return first, second
