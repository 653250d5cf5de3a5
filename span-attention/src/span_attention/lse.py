"""Log-sum-exps (LSE): what `merge` needs of attention over a part of the keys.

lse[T H], float32, is the natural logarithm of the softmax denominator of each row and head: the sum
of the exponentials of its scores, scaled, capped and biased; minus infinity where no key is seen.

Requirements on partial results:

* A sink is a score like any other, and is included in the lse of its part. Pass sinks to one part
  only, one that has keys.
* A row of a part has the part's last positions; windows and ALiBi distances are counted from there.
  If a row's true position is d after that, subtract slope * d from its lse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from spaninfer_kernel_launch import Result, ShapeError


def results_of(
    shape: tuple[int, int, int], dtype: object, *, alignment: int, lse: bool
) -> tuple[Result, ...]:
    """Return the results of attention: out[T H E], and with `lse` lse[T H]."""
    out: Result = ("out", shape, dtype, alignment)
    return (out, ("lse", shape[:2], np.float32, 1)) if lse else (out,)


def pair_of(out: Any) -> tuple[Any, Any]:
    """Return the arrays that the caller gives for out and lse; None for those not given.

    Raises ShapeError for an `out` that is no pair.
    """
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise ShapeError("out is no pair; with lse=True it is a tuple of two arrays, out and lse")
    first, second = out
    return first, second
