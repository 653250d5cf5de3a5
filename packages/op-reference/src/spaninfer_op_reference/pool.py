"""From the hidden states of a text to its vector."""

from __future__ import annotations

from typing import Literal

from spaninfer_op_reference.arrays import Floats


def pool(hidden: Floats, kind: Literal["cls", "mean", "last"]) -> Floats:
    """[C]: the first row, the mean of all rows, or the last row of a text's hidden[T C], T >= 1.

    The modes `cls_token`, `mean_tokens` and `lasttoken` of sentence-transformers.
    """
    pooled: Floats = hidden.mean(0) if kind == "mean" else hidden[0 if kind == "cls" else -1]
    return pooled
