"""Attention of many queries over keys and values that lie in spans (float32): what callers see.

A query at position p of its request attends the positions j <= p (with a window, those above
p - window), which lie in the spans that the request's table names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu import attention_kernel as kernel
from spaninfer_kernels_cpu.compiled import make_ready
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.workers import share

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

SERIAL_BELOW = 2_000_000  # multiply-adds, some 100 µs: fewer are done before a helper wakes up

_NO_SLOPES = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Rows:
    """Which request and position every query row has, and where the requests' spans are.

    The same for all layers of a cache group; made once per step.
    tables[R M] int32: request r keeps positions [i L, (i + 1) L) in span tables[r, i]; entries for
    positions that no row attends are never read. request[T] int32 indexes `tables`; position[T]
    int32. Neighbouring rows of one request with rising positions share their reads.
    """

    tables: Ints
    request: Ints
    position: Ints

    def __post_init__(self) -> None:
        """Raise unless types and shapes are as described."""
        _demand("tables", self.tables, np.int32, "R M", ordered=2)
        _demand("request", self.request, np.int32, "T", ordered=1)
        _demand("position", self.position, np.int32, "T", ordered=1)
        if len(self.request) != len(self.position):
            raise ShapeError(
                f"request has {len(self.request)} rows, but position has {len(self.position)}"
            )


@dataclass(frozen=True, slots=True)
class Scores:
    """How products of queries and keys become the argument of the softmax.

    score = softcap * tanh(scale * q.k / softcap) + slopes[h] * (j - p), for positions
    p - window < j <= p; without softcap, slopes[H] (float32) or window, that part is left out.
    The bias differs from the usual slope * j by a constant per row, which softmax does not see
    and which float32 rounds less.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    slopes: Floats | None = None

    def __post_init__(self) -> None:
        """Raise unless every number means something."""
        if self.softcap is not None and not self.softcap > 0:
            raise ShapeError(f"softcap is {self.softcap}; give a positive number, or None")
        if self.window is not None and self.window < 1:
            raise ShapeError(f"window is {self.window}; give at least 1, or None")
        if self.slopes is not None:
            _demand("slopes", self.slopes, np.float32, "H", ordered=1)


def attend(
    query: Floats, keys: Floats, values: Floats, rows: Rows, scores: Scores, *, out: Floats
) -> None:
    """Write into out[T H E] what query[T H D] reads from keys[S L K D] and values[S L K E].

    float32 throughout. H is a multiple of K: query head h reads key/value head h // (H / K). Keys
    and values may be strided on every axis but the last (all layers in one array; for MLA, values
    that are the first E columns of the keys). Works on every usable CPU where that pays.
    Span numbers and positions are trusted: they come from the pool, which checks them.
    """
    _check(query, keys, values, rows, scores, out)
    slopes = _NO_SLOPES if scores.slopes is None else scores.slopes
    arguments = (
        *(query, keys, values, rows.tables, rows.request, rows.position),
        *(scores.scale, scores.softcap or 0.0, scores.window or 0, slopes, out),
    )
    share(compiled(), arguments, _num_workers(query, values, rows, scores))


@cache
def compiled() -> Callable[..., None]:
    """Return the kernel, ready to run."""
    make_ready(kernel.work, kernel.SIGNATURE)
    return kernel.work


def _num_workers(query: Floats, values: Floats, rows: Rows, scores: Scores) -> int:
    """Return how many threads share the work: one where it is little."""
    if not len(query) or usable_cpus() == 1:
        return 1
    num_keys = int(rows.position.max()) + 1
    if scores.window is not None:
        num_keys = min(num_keys, scores.window)
    products = query.size * num_keys * (1 + values.shape[3] / query.shape[2])
    return 1 if products < SERIAL_BELOW else usable_cpus()


def _check(
    query: Floats, keys: Floats, values: Floats, rows: Rows, scores: Scores, out: Floats
) -> None:
    """Raise unless the arguments have the shapes that `attend` describes, and fit together."""
    _demand("query", query, np.float32, "T H D", ordered=3)
    _demand("keys", keys, np.float32, "S L K D", ordered=1)
    _demand("values", values, np.float32, "S L K E", ordered=1)
    _demand("out", out, np.float32, "T H E", ordered=3)
    (num_rows, heads, key_size), (_, _, kv_heads, value_size) = query.shape, values.shape
    if keys.shape[:3] != values.shape[:3] or keys.shape[3] != key_size:
        raise ShapeError(
            f"query {query.shape}, keys {keys.shape} and values {values.shape} do not fit "
            "(T H D), (S L K D) and (S L K E)"
        )
    if not kv_heads or heads % kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {kv_heads} key/value heads")
    if out.shape != (num_rows, heads, value_size):
        raise ShapeError(f"out has shape {out.shape}, needs {(num_rows, heads, value_size)}")
    if len(rows.position) != num_rows:
        raise ShapeError(f"query has {num_rows} rows, but position has {len(rows.position)}")
    if scores.slopes is not None and len(scores.slopes) != heads:
        raise ShapeError(f"slopes has {len(scores.slopes)} numbers for {heads} query heads")


def _demand(name: str, array: NDArray[np.generic], dtype: type, axes: str, *, ordered: int) -> None:
    """Raise unless `array` has this type and these axes, the last `ordered` of them contiguous."""
    if array.dtype != dtype:
        raise DTypeError(f"{name} holds {array.dtype}; the kernel takes {np.dtype(dtype)}")
    letters = axes.split()
    if array.ndim != len(letters):
        raise ShapeError(f"{name}: expected axes ({axes}), got shape {array.shape}")
    contiguous = array.flags.c_contiguous or (
        ordered < array.ndim and (array.shape[-1] < 2 or array.strides[-1] == array.itemsize)
    )
    if not contiguous:
        raise ShapeError(
            f"{name}: the last {ordered} of the axes ({axes}) must be contiguous, but the strides "
            f"are {array.strides} bytes for shape {array.shape}"
        )
