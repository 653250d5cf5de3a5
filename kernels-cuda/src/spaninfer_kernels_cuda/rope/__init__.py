"""Rotary position embedding of queries or keys (Su et al. 2021, "RoFormer").

x[T H D] and out[T H D] have one element type, heads of a row contiguous, rows strided, each
beginning at a multiple of 16 bytes; cosine[T R/2] and sine[T R/2] are float32, and so is the
arithmetic. The first R elements of a head are rotated in pairs (i, i + R/2), or (2i, 2i + 1) where
interleaved; the others are copied. `append` of span_attention does this and the write into spans
in one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Array,
    Call,
    FileCache,
    Gpu,
    ShapeError,
    Source,
    Variant,
    View,
    check_aligned,
    check_dense,
    check_rows,
    compile_variant,
    divide_head,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.rope.tuning import THREADS, launch

SOURCE = Source(
    "spaninfer_kernels_cuda",
    "rope/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "math.cuh", "reduce.cuh", "head.cuh"),
)


@dataclass(frozen=True, slots=True)
class Form:
    """Heads of `size` elements, the first `rotary_len` of which are rotated, and which pairs."""

    size: int
    rotary_len: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rotary embedding of one size, compiled and loaded: `launch` passes pointers alone."""

    rows: int
    heads: int
    workspace_bytes: int
    _call: Call | None

    def launch(
        self, x: object, cosine: object, sine: object, *, out: object, stream: object = None
    ) -> None:
        """Write x, rotated, to `out`, which may be x itself.

        Arrays may be given as addresses. Without a stream, the current one of x's framework.
        """
        self.start(stream_handle(stream, x), *map(pointer_of, (out, x, cosine, sine)))

    def start(self, handle: int, out: int, x: int, cosine: int, sine: int) -> None:
        """Launch with addresses on the stream with this handle, whichever it is."""
        if self._call is not None:
            self._call(handle, out, x, cosine, sine)


def variant_for(form: Form, dtype: object) -> Variant:
    """Return the variant for heads of `dtype` (float32, 16-bit floats).

    Raises ShapeError where a head does not have so many pairs.
    """
    rotated, size = form.rotary_len, form.size
    if rotated % 2 or size % 2 or not 0 <= rotated <= size or not size:
        raise ShapeError(
            f"rope rotates pairs: {rotated} elements of a head of {size}; "
            "both must be even, and a head has at least as many"
        )
    element = element_of(dtype)
    division = divide_head(element.itemsize, size, rotated)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "SIZE": size,
        "ROTARY": rotated,
        "VECTOR": division.vector,
        "LANES": division.lanes,
        "THREADS": THREADS,
        "INTERLEAVED": form.interleaved,
    }
    return Variant.of("rope_rows", SOURCE, macros, element.architectures)


def prepare(
    form: Form,
    *,
    rows: int,
    heads: int,
    dtype: object,
    gpu: Gpu,
    row_strides: tuple[int, int] | None = None,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the rotary embedding of x[rows heads size] on `gpu`, compiled or cached.

    `row_strides` count elements from one row of x and of out to the next; contiguous rows unless
    given. Raises ShapeError or DTypeError for what no variant takes.
    """
    compiled = compile_variant(variant_for(form, dtype), gpu.arch, cache or user_cache())
    division = divide_head(element_of(dtype).itemsize, form.size, form.rotary_len)
    grid = launch(rows, heads, division.lanes, gpu.sm_count)
    sizes = (heads, *(row_strides or (heads * form.size,) * 2))
    call = Call(load(compiled, gpu), grid, "PPPP i qq", always=sizes) if grid else None
    return Prepared(rows, heads, workspace_bytes=0, _call=call)


_prepared = lru_cache(maxsize=1024)(prepare)


def rope(
    x: object,
    cosine: object,
    sine: object,
    *,
    interleaved: bool = False,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[T H D] with the first R elements of each head rotated by cosine, sine[T R/2].

    Without `out`, the result is a new array in the order of the stream, which torch.from_dlpack
    and cupy.from_dlpack take; with out=x the heads are rotated where they lie. Without a stream,
    the current one of x's framework.
    """
    views = {"x": view_of(x), "cosine": view_of(cosine), "sine": view_of(sine)}
    axes = {"x": "T H D", "cosine": "T F", "sine": "T F"}
    if out is not None:
        views["out"], axes["out"] = view_of(out), "T H D"
    rows, heads, size, pairs = match(
        **{name: (v, axes[name]) for name, v in views.items()}
    ).values()
    angles = {name: views[name] for name in ("cosine", "sine")}
    check_dense(np.float32, **angles)
    check_aligned(_angle_bytes(views["x"].dtype, size, 2 * pairs), **angles)
    rows_of: dict[str, View] = {name: views[name] for name in ("x", "out") if name in views}
    dtype, gpu = views["x"].dtype, gpu_of(**views)
    check_rows(dtype, _ALIGNMENT, **rows_of)
    form = Form(size, 2 * pairs, interleaved)
    strides = (views["x"].strides[0], views["out"].strides[0] if out is not None else heads * size)
    step = _prepared(form, rows=rows, heads=heads, dtype=dtype, gpu=gpu, row_strides=strides)
    handle = stream_handle(stream, x)
    if out is None:
        out = Array((rows, heads, size), dtype, gpu, handle)
    addresses = (views[name].pointer for name in ("x", "cosine", "sine"))
    step.start(handle, pointer_of(out), *addresses)
    return out


_ALIGNMENT = 16  # bytes: what one thread loads at once


def _angle_bytes(dtype: np.dtype[Any], size: int, rotary_len: int) -> int:
    """Return the bytes of cosines that one thread loads at once."""
    vector = divide_head(element_of(dtype).itemsize, size, rotary_len).vector
    return min(_ALIGNMENT, vector * np.dtype(np.float32).itemsize)


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(Form(size, rotary_len, interleaved), dtype)
    for size, rotary_len in ((64, 64), (80, 20), (96, 96), (128, 128), (256, 64))
    for interleaved in (False, True)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every pairing and element type, with whole and partly rotated heads of published models."""
