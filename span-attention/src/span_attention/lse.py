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

import numpy as np
from spaninfer_kernel_launch import Gpu, ShapeError, result_array


def check_lse(lse: object, is_written: bool) -> None:
    """Raise ShapeError for an lse that the kernel does not write, or that it lacks; 0 is none."""
    if is_written is (isinstance(lse, int) and lse == 0):
        raise ShapeError(
            "lse is missing; a kernel whose Form has lse=True writes it"
            if is_written
            else "lse is given, but the kernel does not write it; prepare it with Form(…, lse=True)"
        )


def result_arrays(
    out: object,
    shape: tuple[int, int, int],
    dtype: object,
    gpu: Gpu,
    stream: int,
    *,
    alignment: int,
    lse: bool,
) -> tuple[object, object]:
    """Return where a friendly function writes out[T H E] and lse[T H], the latter 0 without `lse`.

    Of `out`, checked, a pair where there are two; or new ones where it is None. Raises ShapeError,
    DTypeError or DeviceError for what cannot be written to.
    """
    if not lse:
        return result_array(out, shape, dtype, gpu, stream, alignment=alignment), 0
    if out is None:
        out = None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise ShapeError("out is no pair; with lse=True it is a tuple of two arrays, out and lse")
    first, second = out
    return (
        result_array(first, shape, dtype, gpu, stream, alignment=alignment),
        result_array(second, shape[:2], np.float32, gpu, stream, name="lse"),
    )
