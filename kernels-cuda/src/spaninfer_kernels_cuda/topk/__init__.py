"""The k largest elements of rows, with their indices: exact, stable, for any distribution.

Rows x[T V] of float32, float16 or bfloat16, the elements of a row contiguous, rows strided; values
[T k] of the same type and indices[T k] int32, contiguous. Equal values are ordered by index, -0 and
+0 are equal, NaN counts as smaller than everything else, as in op-reference's `topk`. k is at most
4096; V is anything below 2^31.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    Compiled,
    FileCache,
    Gpu,
    Int32,
    Int64,
    Launch,
    NamedCalls,
    Operator,
    Pointer,
    ShapeError,
    Signature,
    Source,
    Step,
    Variant,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    new_results,
    pointer_of,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.topk.tuning import THREADS, Division, divide


class ShortArguments(NamedTuple):
    """Arguments of topk_short, for rows that a block holds."""

    values: Pointer
    indices: Pointer
    x: Pointer


class ShortSizes(NamedTuple):
    """Sizes, the constants of topk_short."""

    length: Int32
    stride: Int64
    k: Int32


class BoundArguments(NamedTuple):
    """Arguments of topk_bound, which finds a bound that about k elements of a row reach."""

    rows: Pointer
    offers: Pointer
    x: Pointer


class BoundSizes(NamedTuple):
    """Sizes, the constants of topk_bound."""

    length: Int32
    stride: Int64
    samples: Int32
    least: Int32
    offered: Int32


class FilterArguments(NamedTuple):
    """Arguments of topk_filter, which reads the rows and selects among elements above the bound."""

    values: Pointer
    indices: Pointer
    rows: Pointer
    offers: Pointer
    lists: Pointer
    x: Pointer


class FilterSizes(NamedTuple):
    """Sizes, the constants of topk_filter."""

    length: Int32
    stride: Int64
    k: Int32
    offers_of_row: Int32
    least: Int32
    capacity: Int32


TOPK_SHORT = Signature("topk_short", ShortArguments, ShortSizes)
TOPK_BOUND = Signature("topk_bound", BoundArguments, BoundSizes)
TOPK_FILTER = Signature("topk_filter", FilterArguments, FilterSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "topk/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh"),
    parts=tuple(f"topk/{part}.cuh" for part in ("keys", "bound", "sample", "choose", "stream")),
    kernels=(TOPK_SHORT, TOPK_BOUND, TOPK_FILTER),
)

_ROW_BYTES = 8  # struct Row of keys.cuh
_KEY_BYTES = 8  # also the alignment of a workspace


@dataclass(frozen=True, slots=True)
class PreparedTopK:
    """A top-k of one size.

    `workspace_bytes` is the size of the workspace, 8-byte aligned, with any content.
    """

    rows: int
    length: int
    k: int
    workspace_bytes: int
    division: Division | None
    short: Call[ShortArguments] | None
    long: tuple[Call[BoundArguments], Call[FilterArguments]] | None
    offers: int  # offset in the workspace, in bytes
    lists: int  # likewise

    def launch(
        self,
        x: object,
        *,
        out: tuple[object, object],
        workspace: object = None,
        stream: object = None,
    ) -> None:
        """Write values and indices of the k largest to `out`, on `stream`."""
        values, indices = map(pointer_of, out)
        handle = stream_handle(stream, x)
        self.start(handle, pointer_of(x), values, indices, pointer_of(workspace))

    def start(self, handle: int, x: int, values: int, indices: int, workspace: int) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.short is not None:
            self.short(handle, ShortArguments(values, indices, x))
        if self.long is not None:
            bound, collect = self.long
            offers = workspace + self.offers
            bound(handle, BoundArguments(workspace, offers, x))
            lists = workspace + self.lists
            collect(handle, FilterArguments(values, indices, workspace, offers, lists, x))


def variant_for(dtype: object, *, sorted: bool = True) -> Variant:
    """Return the variant for rows of `dtype`, which holds the three kernels of `SOURCE`."""
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {"T": element.name, "SORTED": sorted}
    return Variant.of("topk_filter", SOURCE, macros, element.architectures)


def prepare(
    *,
    rows: int,
    length: int,
    k: int,
    dtype: object,
    gpu: Gpu,
    sorted: bool = True,
    row_stride: int | None = None,
    cache: FileCache | None = None,
) -> PreparedTopK:
    """Return the top-k of x[rows length] on `gpu`, compiled or cached.

    `row_stride` counts elements from one row to the next (`length` unless given). With
    `sorted=False` the k largest come in any order. Raises ShapeError or DTypeError for unsupported
    sizes or types, CompileError where there is no compiler.
    """
    division = divide(rows, length, k, element_of(dtype).itemsize, gpu.sm_count)
    variant = variant_for(dtype, sorted=sorted)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    stride = length if row_stride is None else row_stride
    short, long, num_offers = None, None, 0
    if rows and division is None:
        launch = Launch((rows, 1, 1), (THREADS, 1, 1))
        short = Call(load(compiled, gpu, TOPK_SHORT), launch, ShortSizes(length, stride, k))
    elif rows and division:
        num_offers = division.samplers * division.offered
        long = _long(
            compiled,
            gpu,
            division,
            FilterSizes(
                length=length,
                stride=stride,
                k=k,
                offers_of_row=num_offers,
                least=division.least,
                capacity=division.capacity,
            ),
            rows,
        )
    offers = rows * _ROW_BYTES
    return PreparedTopK(
        rows=rows,
        length=length,
        k=k,
        workspace_bytes=_workspace_bytes(rows, division),
        division=division,
        short=short,
        long=long,
        offers=offers,
        lists=offers + rows * num_offers * _KEY_BYTES,
    )


def _long(
    compiled: Compiled, gpu: Gpu, division: Division, sizes: FilterSizes, rows: int
) -> tuple[Call[BoundArguments], Call[FilterArguments]]:
    """Return the two launches of rows that a block cannot hold."""
    block = (THREADS, 1, 1)
    bound = BoundSizes(
        length=sizes.length,
        stride=sizes.stride,
        samples=division.samples,
        least=division.least,
        offered=division.offered,
    )
    readers = Launch((division.blocks, rows, 1), block, overlaps=True)
    return (
        Call(load(compiled, gpu, TOPK_BOUND), Launch((division.samplers, rows, 1), block), bound),
        Call(load(compiled, gpu, TOPK_FILTER), readers, sizes),
    )


def _workspace_bytes(rows: int, division: Division | None) -> int:
    if division is None:
        return 0
    keys = division.samplers * division.offered + division.capacity
    return rows * (_ROW_BYTES + keys * _KEY_BYTES)


def topk(
    x: object,
    k: int,
    *,
    sorted: bool = True,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return values[T k] and int32 indices[T k] of the k largest of x[T V], largest first.

    x and values are float32, float16 or bfloat16; with `sorted=False` the order is any. Without
    `out`, a pair, the results are new arrays. Raises ShapeError, DTypeError or DeviceError for
    arguments that do not fit.
    """
    new = _topk.start((k, sorted), (x, *(out or (None, None))), stream=stream)
    return out or new


def _prepare_call(options: tuple[int, bool], given: dict[str, ArraySpec]) -> Step:
    """Return the top-k of arrays with these specs; options are k, and if it is sorted."""
    (k, sorted), x = options, view_at(given["x"])
    rows, length = match(x=(x, "T V")).values()
    gpu = gpu_of(x=x)
    if rows and length > 1 and x.strides[1] != 1:
        raise ShapeError(f"x: the elements of a row must be contiguous, got strides {x.strides}")
    stride, dtype = x.strides[0], x.dtype
    best = prepare(
        rows=rows, length=length, k=k, dtype=dtype, gpu=gpu, sorted=sorted, row_stride=stride
    )
    new = new_results(
        given, gpu, ("values", (rows, k), dtype, 1), ("indices", (rows, k), np.dtype(np.int32), 1)
    )
    if best.long is None:
        return Step(gpu, NamedCalls.of(best.short), new)
    calls = NamedCalls.of(*best.long, offers=("rows", best.offers), lists=("rows", best.lists))
    return Step(gpu, calls, new, (("rows", (best.workspace_bytes,), np.uint8, _KEY_BYTES),))


_topk = Operator("x values indices", _prepare_call, maxsize=256)

VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(dtype, sorted=sorted)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
    for sorted in (True, False)
)
"""All variants: one per element type and order."""
