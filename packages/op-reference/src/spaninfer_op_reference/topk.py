"""The largest entries of rows."""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.arrays import Floats, Ints


def topk(x: Floats, k: int) -> tuple[Floats, Ints]:
    """Return the k largest of x[... V] and their indices, [... k] each, largest first.

    Of equal values the one with the smaller index comes first, and stays.
    """
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order
