"""Merge of attention over parts of the keys into attention over all of them.

outputs[P T H E] of P parts, float32, float16 or bfloat16, and lse[P T H] float32, the natural
logarithm of each part's sum of exponentials, minus infinity where it saw no key; both contiguous:
what `BatchDecode` and `BatchPrefill` give with lse=True (requirements on parts: lse.py). The
results are out[T H E], of the outputs' type, and total[T H] float32, the log-sum-exp of all parts.
Where no part saw a key, the output is zero and the total minus infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    ShapeError,
    Signature,
    Source,
    Step,
    Variant,
    check_aligned,
    check_dense,
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

from span_attention.merge.tuning import WARPS, launch, vector


class MergeArguments(NamedTuple):
    """Addresses, the arguments of merge_parts."""

    out: Pointer
    total: Pointer
    outputs: Pointer
    lse: Pointer


class MergeSizes(NamedTuple):
    """Sizes, the constants of merge_parts: parts, and heads of all rows."""

    parts: Int32
    heads: Int64


MERGE_PARTS = Signature("merge_parts", MergeArguments, MergeSizes)
SOURCE = Source(
    "span_attention",
    "merge/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh"),
    own=("softmax.cuh",),
    kernels=(MERGE_PARTS,),
)


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    """A merge of one size."""

    parts: int
    rows: int
    heads: int
    workspace_bytes: int
    call: Call[MergeArguments] | None

    def launch(
        self, outputs: object, lse: object, *, out: tuple[object, object], stream: object = None
    ) -> None:
        """Write the merged output and the total of log-sum-exps to `out`."""
        merged, total = map(pointer_of, out)
        arguments = MergeArguments(merged, total, pointer_of(outputs), pointer_of(lse))
        self.start(stream_handle(stream, outputs), arguments)

    def start(self, handle: int, arguments: MergeArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


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
) -> PreparedMerge:
    """Return the merge of outputs[parts rows heads size] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types.
    """
    if parts < 1 or size < 1:
        raise ShapeError(f"{parts} parts of heads of {size} elements; at least one of each")
    variant, grid = variant_for(dtype, size), launch(rows * heads)
    call = None
    if grid:
        compiled = compile_variant(variant, gpu.arch, cache or user_cache())
        call = Call(load(compiled, gpu, MERGE_PARTS), grid, MergeSizes(parts, rows * heads))
    return PreparedMerge(parts, rows, heads, workspace_bytes=0, call=call)


def merge(
    outputs: object,
    lse: object,
    *,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return out[T H E] and total[T H] of outputs[P T H E] and lse[P T H].

    P parts of the keys were attended to apart; lse are their log-sum-exps, float32. Without `out`,
    the results are new arrays. Raises ShapeError, DTypeError or DeviceError for arguments that do
    not fit.
    """
    new = _merge.start(None, (outputs, lse, *(out or (None, None))), stream=stream)
    return out or new


def _prepare_call(_: None, given: dict[str, ArraySpec]) -> Step:
    """Return the merge of arrays with these specs."""
    outputs, lse = view_at(given["outputs"]), view_at(given["lse"])
    parts, rows, heads, size = match(outputs=(outputs, "P T H E"), lse=(lse, "P T H")).values()
    dtype = outputs.dtype
    check_dense(dtype, outputs=outputs)
    check_aligned(vector(size, dtype.itemsize) * dtype.itemsize, outputs=outputs)
    check_dense(np.float32, lse=lse)
    gpu = gpu_of(outputs=outputs, lse=lse)
    merging = prepare(parts=parts, rows=rows, heads=heads, size=size, dtype=dtype, gpu=gpu)
    new = new_results(
        given,
        gpu,
        ("out", (rows, heads, size), dtype, 16),
        ("total", (rows, heads), np.float32, 1),
    )
    return Step(gpu, NamedCalls.of(merging.call), new)


_merge = Operator("outputs lse out total", _prepare_call, maxsize=256)

VARIANTS: tuple[Variant, ...] = (
    variant_for(np.float32, 128),
    variant_for(np.float16, 96),
    variant_for(ml_dtypes.bfloat16, 512),
)
"""A cover: every element type, loads of every width."""
