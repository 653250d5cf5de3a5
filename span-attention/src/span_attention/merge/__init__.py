"""Attention over parts of the keys into attention over all of them.

outputs[P T H E] of P parts, float32, float16 or bfloat16, and lse[P T H] float32, the natural
logarithm of each part's sum of exponentials, minus infinity where it saw no key; both contiguous:
what `decode` and `prefill` give with lse=True (lse.py says what parts have to keep to).
The results are out[T H E], of the outputs' type, and total[T H] float32, the log-sum-exp of all
parts. Where no part saw a key, the output is zero and the total minus infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    ShapeError,
    Source,
    Variant,
    check_aligned,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from span_attention.merge.tuning import WARPS, launch, vector

SOURCE = Source(
    "span_attention",
    "merge/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh"),
    own=("softmax.cuh",),
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A merge of one size, compiled and loaded: `launch` passes pointers, and nothing else."""

    parts: int
    rows: int
    heads: int
    workspace_bytes: int
    _call: Call | None

    def launch(
        self, outputs: object, lse: object, *, out: tuple[object, object], stream: object = None
    ) -> None:
        """Write the merged output and the total of log-sum-exps to `out`.

        Arrays may be given as addresses. Without a stream, the current one of outputs' framework.
        """
        if self._call is None:
            return
        self._call(
            *(stream_handle(stream, outputs), *map(pointer_of, (*out, outputs, lse))),
            *(self.parts, self.rows * self.heads),
        )


def variant_for(dtype: object, size: int) -> Variant:
    """Return the variant for heads of `size` elements of `dtype`."""
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "SIZE": size,
        "VECTOR": vector(size, element.itemsize),
        "WARPS": WARPS,
    }
    return Variant.of("merge_parts", SOURCE, macros, element.architectures)


def prepare(
    *,
    parts: int,
    rows: int,
    heads: int,
    size: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the merge of outputs[parts rows heads size] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for what no variant takes.
    """
    if parts < 1 or size < 1:
        raise ShapeError(f"{parts} parts of heads of {size} elements; at least one of each")
    variant, grid = variant_for(dtype, size), launch(rows * heads)
    call = None
    if grid:
        compiled = compile_variant(variant, gpu.arch, cache or user_cache())
        call = Call(load(compiled, gpu), grid, "PPPP iq")
    return Prepared(*(parts, rows, heads), workspace_bytes=0, _call=call)


_prepared = lru_cache(maxsize=256)(prepare)


def merge(
    outputs: object,
    lse: object,
    *,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return out[T H E] and total[T H] of outputs[P T H E] and lse[P T H].

    Without `out`, the results are new arrays in the order of the stream, which torch.from_dlpack
    and cupy.from_dlpack take. Without a stream, the current one of outputs' framework.
    """
    given, sums = view_of(outputs), view_of(lse)
    parts, rows, heads, size = match(outputs=(given, "P T H E"), lse=(sums, "P T H")).values()
    check_dense(given.dtype, outputs=given)
    check_aligned(vector(size, given.dtype.itemsize) * given.dtype.itemsize, outputs=given)
    check_dense(np.float32, lse=sums)
    gpu, handle = gpu_of(outputs=given, lse=sums), stream_handle(stream, outputs)
    step = _prepared(parts=parts, rows=rows, heads=heads, size=size, dtype=given.dtype, gpu=gpu)
    given_out, given_total = out or (None, None)
    merged = result_array(given_out, (rows, heads, size), given.dtype, gpu, handle, alignment=16)
    total = result_array(given_total, (rows, heads), np.float32, gpu, handle, name="total")
    step.launch(outputs, lse, out=(merged, total), stream=stream)
    return merged, total


VARIANTS: tuple[Variant, ...] = (
    variant_for(np.float32, 128),
    variant_for(np.float16, 96),
    variant_for(ml_dtypes.bfloat16, 512),
)
"""A cover: every element type, loads of every width."""
