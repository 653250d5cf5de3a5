"""What an append takes besides queries, keys and values; and the check of all of it."""

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
    view_of,
)

from span_attention.layout import SpanLayout

ALIGNMENT: Final = 16  # bytes of pointers and rows: what one thread loads at once


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotary embedding of each row: cosine[T R/2], sine[T R/2] float32; `len` is R."""

    cosine: object
    sine: object
    len: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of each head: query_weight[D] and key_weight[D], and what keeps it finite.

    Heads are multiplied by weight + `weight_offset`, which is 1 for Gemma.
    """

    query_weight: object
    key_weight: object
    eps: float
    weight_offset: float = 0.0


def check(
    query: object,
    key: object,
    value: object,
    slot: object,
    rotary: Rotary | None,
    head_norm: HeadNorm | None,
    layout: SpanLayout,
) -> dict[str, View]:
    """Return a view of each argument. Raises ShapeError or DTypeError where one does not fit."""
    axes = {
        "query": (query, f"T H {layout.key_size}"),
        "key": (key, f"T {layout.kv_heads} {layout.key_size}"),
        "slot": (slot, "T"),
    }
    if layout.values != layout.keys:
        axes["value"] = (value, f"T {layout.kv_heads} {layout.value_size}")
    if rotary is not None:
        axes["cosine"] = (rotary.cosine, f"T {rotary.len // 2}")
        axes["sine"] = (rotary.sine, f"T {rotary.len // 2}")
    if head_norm is not None:
        axes["query_weight"] = (head_norm.query_weight, f"{layout.key_size}")
        axes["key_weight"] = (head_norm.key_weight, f"{layout.key_size}")
    views = {name: view_of(array) for name, (array, _) in axes.items()}
    match(**{name: (view, axes[name][1]) for name, view in views.items()})
    check_dense(np.int32, slot=views["slot"])
    dtype, norms = views["query"].dtype, {"query_weight", "key_weight"} & views.keys()
    if rotary is not None:
        angles = {name: views[name] for name in ("cosine", "sine")}
        loaded = divide_head(dtype.itemsize, layout.key_size, rotary.len).vector
        check_dense(np.float32, **angles)
        check_aligned(min(ALIGNMENT, loaded * np.dtype(np.float32).itemsize), **angles)
    check_rows(dtype, ALIGNMENT, **{name: views[name] for name in _ROWS if name in views})
    check_dense(dtype, **{name: views[name] for name in norms})
    check_aligned(ALIGNMENT, **{name: views[name] for name in norms})
    return views


_ROWS = ("query", "key", "value")
