"""The k largest elements of rows, with their places: exact, stable, for any distribution.

Rows x[T V] of float32, float16 or bfloat16, the elements of a row contiguous, rows strided; values
[T k] of the same type and indices[T k] int32, contiguous. Equal values are ordered by index, -0 and
+0 are equal, NaN counts as smaller than everything else: what op-reference's `topk` says. k is at
most 4096; V is anything below 2^31.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Array,
    Call,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    Source,
    Variant,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.topk.tuning import THREADS, Division, divide

SOURCE = Source(
    "spaninfer_kernels_cuda",
    "topk/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh"),
    parts=tuple(f"topk/{part}.cuh" for part in ("keys", "bound", "draw", "choose", "stream")),
)
ENTRIES = ("topk_short", "topk_bound", "topk_filter")

_ROW_BYTES = 8  # struct Row of keys.cuh
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """A top-k of one size, compiled and loaded: `launch` passes pointers, and nothing else.

    `workspace_bytes` is what `launch` needs of 16-byte aligned memory, whatever is in it.
    """

    rows: int
    length: int
    k: int
    workspace_bytes: int
    division: Division | None
    _calls: tuple[Call, ...]
    _row_stride: int

    def launch(
        self, x: object, *, out: tuple[object, object], workspace: object = 0, stream: object = None
    ) -> None:
        """Write values and indices of the k largest to `out`, on `stream`.

        Arrays may be given as addresses. Without a stream, the current one of x's framework.
        """
        self.start(stream_handle(stream, x), x, out, workspace)

    def start(self, handle: int, x: object, out: tuple[object, object], workspace: object) -> None:
        """Do what `launch` does, on the stream with this handle, whichever it is."""
        if not self._calls:
            return
        values, indices = map(pointer_of, out)
        at = pointer_of(x)
        if self.division is None:
            [short] = self._calls
            short(handle, values, indices, at, self.length, self._row_stride, self.k)
            return
        bound, collect = self._calls
        division, states = self.division, pointer_of(workspace)
        offers = states + self.rows * _ROW_BYTES
        num_offers = division.samplers * division.offered
        lists = offers + self.rows * num_offers * _KEY_BYTES
        bound(
            *(handle, states, offers, at, self.length, self._row_stride),
            *(division.samples, division.least, division.offered),
        )
        collect(
            *(handle, values, indices, states, offers, lists, at, self.length, self._row_stride),
            *(self.k, num_offers, division.least, division.capacity),
        )


def variant_for(dtype: object, *, sorted: bool = True) -> Variant:
    """Return the variant for rows of `dtype`, which holds the three kernels of `ENTRIES`."""
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
) -> Prepared:
    """Return the top-k of x[rows length] on `gpu`, compiled, or from `cache` where it is known.

    `row_stride` counts elements from one row to the next (`length` unless given). With
    `sorted=False` the k largest come in any order. Raises ShapeError or DTypeError for what no
    kernel takes, CompileError where there is no compiler.
    """
    division = divide(rows, length, k, element_of(dtype).itemsize, gpu.sm_count)
    variant = variant_for(dtype, sorted=sorted)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    short, bound, collect = (load(compiled, gpu, entry) for entry in ENTRIES)
    calls: tuple[Call, ...] = ()
    if rows and division is None:
        calls = (Call(short, Launch((rows, 1, 1), (THREADS, 1, 1)), "PPP iqi"),)
    elif rows and division:
        samplers, readers = (division.samplers, rows, 1), (division.blocks, rows, 1)
        calls = (
            Call(bound, Launch(samplers, (THREADS, 1, 1)), "PPP iqiii"),
            Call(
                collect,
                Launch(readers, (THREADS, 1, 1), overlaps=True),
                "PPPPPP iqiiii",
            ),
        )
    return Prepared(
        *(rows, length, k),
        workspace_bytes=_workspace_bytes(rows, division),
        division=division,
        _calls=calls,
        _row_stride=length if row_stride is None else row_stride,
    )


def _workspace_bytes(rows: int, division: Division | None) -> int:
    if division is None:
        return 0
    keys = division.samplers * division.offered + division.capacity
    return rows * (_ROW_BYTES + keys * _KEY_BYTES)


_prepared = lru_cache(maxsize=256)(prepare)


def topk(
    x: object,
    k: int,
    *,
    sorted: bool = True,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return values[T k] and indices[T k] of the k largest of x[T V], largest first.

    Without `out`, the results are new arrays in the order of the stream, which torch.from_dlpack
    and cupy.from_dlpack take. Without a stream, the current one of x's framework.
    """
    given = view_of(x)
    rows, length = match(x=(given, "T V")).values()
    gpu = gpu_of(x=given)
    handle = stream_handle(stream, x)
    if rows and length > 1 and given.strides[1] != 1:
        raise ShapeError(
            f"x: the elements of a row must be contiguous, got strides {given.strides}"
        )
    step = _prepared(
        rows=rows,
        length=length,
        k=k,
        dtype=given.dtype,
        gpu=gpu,
        sorted=sorted,
        row_stride=given.strides[0],
    )
    if out is None:
        values: object = Array((rows, k), given.dtype, gpu, handle)
        indices: object = Array((rows, k), np.int32, gpu, handle)
    else:
        values, indices = out
        places = view_of(values), view_of(indices)
        match(values=(places[0], f"{rows} {k}"), indices=(places[1], f"{rows} {k}"))
        check_dense(given.dtype, values=places[0])
        check_dense(np.int32, indices=places[1])
        gpu_of(x=given, values=places[0], indices=places[1])
    workspace = Array((step.workspace_bytes,), np.uint8, gpu, handle)
    step.start(handle, given, (values, indices), workspace)
    return values, indices


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(dtype, sorted=sorted)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
    for sorted in (True, False)
)
"""All there are: one per element type and order."""
