"""Embedding lookup: rows of a table by token id, times a number.

table[V C], ids[T] int32 -> out[T C]. Table and result have one element type, contiguous and 16-byte
aligned. The number is rounded to that type first, as models do that scale their embeddings, the
product once more. An id outside of the table gives a row of NaN.
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
    Float32,
    Gpu,
    Int32,
    NamedCalls,
    Operator,
    Pointer,
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

from spaninfer_kernels_cuda.rows import divide, launch


class EmbedArguments(NamedTuple):
    """Addresses, the arguments of embed_rows."""

    out: Pointer
    table: Pointer
    ids: Pointer


class EmbedSizes(NamedTuple):
    """Sizes of the table, and the scale: the constants of embed_rows."""

    rows_of_table: Int32
    channels: Int32
    scale: Float32


EMBED_ROWS = Signature("embed_rows", EmbedArguments, EmbedSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "embedding/kernel.cu",
    headers=("types.cuh", "overlap.cuh"),
    kernels=(EMBED_ROWS,),
)


@dataclass(frozen=True, slots=True)
class PreparedEmbedding:
    """An embedding lookup of one size."""

    rows: int
    channels: int
    workspace_bytes: int
    call: Call[EmbedArguments] | None

    def launch(self, table: object, ids: object, *, out: object, stream: object = None) -> None:
        """Write rows of the table to `out`."""
        arguments = EmbedArguments(pointer_of(out), pointer_of(table), pointer_of(ids))
        self.start(stream_handle(stream, table), arguments)

    def start(self, handle: int, arguments: EmbedArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(channels: int, dtype: object) -> Variant:
    """Return the variant for rows of `channels` elements of `dtype` (float32, 16-bit floats)."""
    element = element_of(dtype)
    division = divide(channels, element.itemsize)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "VECTOR": division.vector,
        "THREADS": division.threads,
        "PACKS": division.packs,
    }
    return Variant.of("embed_rows", SOURCE, macros, element.architectures)


def prepare(
    *,
    rows: int,
    vocab: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    scale: float = 1.0,
    cache: FileCache | None = None,
) -> PreparedEmbedding:
    """Return the lookup of `rows` ids in table[vocab channels] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError where no variant takes the sizes, CompileError where there is no
    compiler.
    """
    compiled = compile_variant(variant_for(channels, dtype), gpu.arch, cache or user_cache())
    grid = launch(rows, divide(channels, element_of(dtype).itemsize))
    rounded = float(np.dtype(dtype).type(scale))  # type: ignore[call-overload]
    sizes = EmbedSizes(vocab, channels, rounded)
    call = Call(load(compiled, gpu, EMBED_ROWS), grid, sizes) if grid else None
    return PreparedEmbedding(rows, channels, workspace_bytes=0, call=call)


def embed(
    table: object, ids: object, *, scale: float = 1.0, out: object = None, stream: object = None
) -> object:
    """Return scale * table[ids] [T C] of table[V C] and ids[T] int32, of the type of the table.

    The table is float32, float16 or bfloat16. Ids are not checked, since they lie on the GPU: the
    row of one that is negative, or V and above, is NaN. Without `out`, the result is a new array.
    Raises ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    new = _embed.start(scale, (table, ids, out), stream=stream)
    return new[0] if out is None else out


def _prepare_call(scale: float, given: dict[str, ArraySpec]) -> Step:
    """Return the lookup in arrays with these specs."""
    table, ids = view_at(given["table"]), view_at(given["ids"])
    vocab, channels, rows = match(table=(table, "V C"), ids=(ids, "T")).values()
    gpu = gpu_of(table=table, ids=ids)
    check_dense(table.dtype, table=table)
    check_dense(np.int32, ids=ids)
    vector = divide(channels, table.dtype.itemsize).vector
    alignment = vector * table.dtype.itemsize
    check_aligned(alignment, table=table)
    lookup = prepare(
        rows=rows, vocab=vocab, channels=channels, dtype=table.dtype, gpu=gpu, scale=scale
    )
    new = new_results(given, gpu, ("out", (rows, channels), table.dtype, alignment))
    return Step(gpu, NamedCalls.of(lookup.call), new)


_embed = Operator("table ids out", _prepare_call)

VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(channels, dtype)
    for channels in (1001, 4096, 16_384)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every element type, with the narrowest load, the widest, and several."""
