"""Arguments of an append besides queries, keys and values, and the checks of all arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from spaninfer_kernel_launch import (
    View,
    check_aligned,
    check_dense,
    check_rows,
    divide_head,
    match,
)

from span_attention.layout import SpanLayout

ALIGNMENT: Final = 16  # bytes, of pointers and rows: one thread's load


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotary embedding of each row: cosine[T R/2], sine[T R/2] float32; `len` is R."""

    cosine: object
    sine: object
    len: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of each head: query_weight[D] and key_weight[D], and its epsilon.

    Heads are multiplied by weight + `weight_offset`, which is 1 for Gemma.
    """

    query_weight: object
    key_weight: object
    eps: float
    weight_offset: float = 0.0


def check(views: dict[str, View], layout: SpanLayout, rotary_len: int) -> dict[str, View]:
    """Return the views that an append reads. Raises ShapeError or DTypeError for misfits.

    Where values lie in the keys, a value is not read.
    """
    axes = {
        "query": f"T H {layout.key_size}",
        "key": f"T {layout.kv_heads} {layout.key_size}",
        "slot_mapping": "T",
        "value": f"T {layout.kv_heads} {layout.value_size}",
        **dict.fromkeys(("cosine", "sine"), f"T {rotary_len // 2}"),
        **dict.fromkeys(("query_weight", "key_weight"), f"{layout.key_size}"),
    }
    if layout.values == layout.keys:
        del axes["value"]
    views = {name: views[name] for name in axes if name in views}
    match(**{name: (view, axes[name]) for name, view in views.items()})
    check_dense(np.int32, slot_mapping=views["slot_mapping"])
    dtype = views["query"].dtype
    angles = {name: views[name] for name in ("cosine", "sine") if name in views}
    if angles:
        loaded = divide_head(dtype.itemsize, layout.key_size, rotary_len).vector
        check_dense(np.float32, **angles)
        check_aligned(min(ALIGNMENT, loaded * np.dtype(np.float32).itemsize), **angles)
    check_rows(dtype, ALIGNMENT, **{name: views[name] for name in _ROWS if name in views})
    weights = {name: views[name] for name in ("query_weight", "key_weight") if name in views}
    check_dense(dtype, **weights)
    check_aligned(ALIGNMENT, **weights)
    return views


_ROWS = ("query", "key", "value")
