"""Rotary position embedding of queries or keys (Su et al. 2021, "RoFormer").

x[T H D] and out[T H D] have one element type, heads of a row contiguous, rows strided, each
beginning at a multiple of 16 bytes; cosine[T R/2] and sine[T R/2] are float32, and so is the
arithmetic. The first R elements of a head are rotated in pairs (i, i + R/2), or (2i, 2i + 1) where
interleaved; the others are copied. `append` of span_attention does this and the write into spans in
one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Int32,
    Int64,
    NamedCalls,
    Operator,
    Pointer,
    Result,
    ShapeError,
    Signature,
    Source,
    Step,
    Variant,
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
    view_at,
)

from spaninfer_kernels_cuda.rope.tuning import THREADS, launch


class RopeArguments(NamedTuple):
    """Addresses, the arguments of rope_rows."""

    out: Pointer
    x: Pointer
    cosine: Pointer
    sine: Pointer


class RopeSizes(NamedTuple):
    """Heads of a row, and elements from row to row."""

    heads: Int32
    x_stride: Int64
    out_stride: Int64


ROPE_ROWS = Signature("rope_rows", RopeArguments, RopeSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "rope/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "math.cuh", "reduce.cuh", "head.cuh"),
    kernels=(ROPE_ROWS,),
)


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """A request for a variant: heads of `size` elements, of which `rotary_len` are rotated."""

    size: int
    rotary_len: int
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRope:
    """A rotary embedding of one size."""

    rows: int
    heads: int
    workspace_bytes: int
    call: Call[RopeArguments] | None

    def launch(
        self, x: object, cosine: object, sine: object, *, out: object, stream: object = None
    ) -> None:
        """Write x, rotated, to `out`, which may be x itself."""
        arguments = RopeArguments(
            out=pointer_of(out), x=pointer_of(x), cosine=pointer_of(cosine), sine=pointer_of(sine)
        )
        self.start(stream_handle(stream, x), arguments)

    def start(self, handle: int, arguments: RopeArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(options: RopeOptions, dtype: object) -> Variant:
    """Return the variant for heads of `dtype` (float32, 16-bit floats).

    Raises ShapeError where a head does not have that many pairs.
    """
    rotated, size = options.rotary_len, options.size
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
        "INTERLEAVED": options.interleaved,
    }
    return Variant.of("rope_rows", SOURCE, macros, element.architectures)


def prepare(
    options: RopeOptions,
    *,
    rows: int,
    heads: int,
    dtype: object,
    gpu: Gpu,
    row_strides: tuple[int, int] | None = None,
    cache: FileCache | None = None,
) -> PreparedRope:
    """Return the rotary embedding of x[rows heads size] on `gpu`, compiled or cached.

    `row_strides` count elements from one row of x and of out to the next; contiguous rows unless
    given. Raises ShapeError or DTypeError for unsupported sizes or types.
    """
    compiled = compile_variant(variant_for(options, dtype), gpu.arch, cache or user_cache())
    division = divide_head(element_of(dtype).itemsize, options.size, options.rotary_len)
    grid = launch(rows, heads, division.lanes, gpu.sm_count)
    x_stride, out_stride = row_strides or (heads * options.size,) * 2
    sizes = RopeSizes(heads, x_stride, out_stride)
    call = Call(load(compiled, gpu, ROPE_ROWS), grid, sizes) if grid else None
    return PreparedRope(rows, heads, workspace_bytes=0, call=call)


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

    x is float32, float16 or bfloat16. Pairs are halves of the R elements, or with `interleaved`
    neighbours. Without `out`, the result is a new array; with out=x the heads are rotated in place.
    Raises ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    new = _rope.start(interleaved, (x, cosine, sine, out), stream=stream)
    return new[0] if out is None else out


def _prepare_call(interleaved: bool, given: dict[str, ArraySpec]) -> Step:
    """Return the rotary embedding of arrays with these specs."""
    views = {name: view_at(spec) for name, spec in given.items()}
    rows_of = {name: views[name] for name in ("x", "out") if name in views}
    angles = {name: views[name] for name in ("cosine", "sine")}
    axes = {"x": "T H D", "cosine": "T F", "sine": "T F", "out": "T H D"}
    rows, heads, size, pairs = match(
        **{name: (view, axes[name]) for name, view in views.items()}
    ).values()
    x = views["x"]
    check_dense(np.float32, **angles)
    check_aligned(_angle_bytes(x.dtype, size, 2 * pairs), **angles)
    gpu = gpu_of(**rows_of, **angles)
    check_rows(x.dtype, _ALIGNMENT, **rows_of)
    options = RopeOptions(size, 2 * pairs, interleaved)
    strides = (x.strides[0], views["out"].strides[0] if "out" in views else heads * size)
    rope = prepare(options, rows=rows, heads=heads, dtype=x.dtype, gpu=gpu, row_strides=strides)
    result: Result = ("out", (rows, heads, size), x.dtype, _ALIGNMENT)
    return Step(gpu, NamedCalls.of(rope.call), () if "out" in given else (result,))


_rope = Operator("x cosine sine out", _prepare_call)

_ALIGNMENT = 16  # bytes that one thread loads at once


def _angle_bytes(dtype: np.dtype[Any], size: int, rotary_len: int) -> int:
    """Return the bytes of cosines that one thread loads at once."""
    vector = divide_head(element_of(dtype).itemsize, size, rotary_len).vector
    return min(_ALIGNMENT, vector * np.dtype(np.float32).itemsize)


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(RopeOptions(size, rotary_len, interleaved), dtype)
    for size, rotary_len in ((64, 64), (80, 20), (96, 96), (128, 128), (256, 64))
    for interleaved in (False, True)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every pairing and element type, with whole and partly rotated heads of published models."""
