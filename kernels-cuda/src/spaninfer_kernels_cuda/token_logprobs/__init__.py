"""Log-probabilities of given tokens under rows of logits, with the most likely tokens beside them.

For prompts, whose tokens are known: `sample` reports on tokens that it samples. Rows logits[R V] of
float32, float16 or bfloat16, a row's elements contiguous, rows strided. Entry n is about token
token_ids[n] under row rows[n]; ranks count from 1, and of equally likely tokens the smaller id is
first. In a row with a NaN or an infinite logit, log-probabilities are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Int32,
    Int64,
    Launch,
    Pointer,
    ShapeError,
    Signature,
    Source,
    Variant,
    compile_variant,
    element_of,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

__all__ = ["MAX_TOP", "VARIANTS", "Entries", "Logprobs", "PreparedTokenLogprobs", "prepare"]

THREADS: Final = 512
MAX_TOP: Final = THREADS // 8  # most likely tokens: groups of threads, see kernel.cu
_MAX_LENGTH: Final = 2**24  # ranks are added up in float32


class LogprobArguments(NamedTuple):
    """Arguments of token_logprobs."""

    chosen: Pointer
    ranks: Pointer
    top_ids: Pointer
    top: Pointer
    logits: Pointer
    rows: Pointer
    token_ids: Pointer


class LogprobSizes(NamedTuple):
    """Most likely tokens of an entry; logits of a row; elements from row to row."""

    num_top: Int32
    length: Int32
    stride: Int64


TOKEN_LOGPROBS: Final = Signature("token_logprobs", LogprobArguments, LogprobSizes)
SOURCE: Final = Source(
    "spaninfer_kernels_cuda",
    "token_logprobs/kernel.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh"),
    kernels=(TOKEN_LOGPROBS,),
)


@dataclass(frozen=True, slots=True)
class Entries:
    """The tokens to report on: device arrays, or their addresses."""

    rows: object  # int32[N]
    token_ids: object  # int32[N]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The arrays of a report on the device, or their addresses.

    Most likely tokens come first; ids are -1 where fewer logits are finite.
    """

    chosen: object  # float32[N]
    ranks: object  # int32[N]
    top_ids: object  # int32[N K]
    top: object  # float32[N K]


@dataclass(frozen=True, slots=True)
class PreparedTokenLogprobs:
    """Log-probabilities of N tokens, with K most likely ones each."""

    count: int
    num_top: int
    workspace_bytes: int
    _call: Call[LogprobArguments] | None

    def launch(
        self, logits: object, entries: Entries, *, out: Logprobs, stream: object = None
    ) -> None:
        """Write the log-probabilities of entries under logits[R V]."""
        if self._call is None:
            return
        arguments = LogprobArguments(
            chosen=pointer_of(out.chosen),
            ranks=pointer_of(out.ranks),
            top_ids=pointer_of(out.top_ids),
            top=pointer_of(out.top),
            logits=pointer_of(logits),
            rows=pointer_of(entries.rows),
            token_ids=pointer_of(entries.token_ids),
        )
        self._call(stream_handle(stream, logits), arguments)


def variant_for(dtype: object) -> Variant:
    """Return the variant for logits of `dtype`."""
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {"T": element.name, "THREADS": THREADS}
    return Variant.of("token_logprobs", SOURCE, macros, element.architectures)


def prepare(
    *,
    count: int,
    length: int,
    dtype: object,
    gpu: Gpu,
    num_top: int = 0,
    row_stride: int | None = None,
    cache: FileCache | None = None,
) -> PreparedTokenLogprobs:
    """Return log-probabilities of `count` tokens under rows of `length` logits, on `gpu`.

    `row_stride` counts elements from one row to the next (`length` unless given). Raises ShapeError
    or DTypeError for unsupported sizes or types, CompileError where there is no compiler.
    """
    if not 1 <= length <= _MAX_LENGTH:
        raise ShapeError(f"rows have {length} logits; at least 1, at most {_MAX_LENGTH}")
    if not 0 <= num_top <= MAX_TOP:
        raise ShapeError(f"{num_top} most likely tokens; at most {MAX_TOP}")
    compiled = compile_variant(variant_for(dtype), gpu.arch, cache or user_cache())
    kernel = load(compiled, gpu, TOKEN_LOGPROBS)
    sizes = LogprobSizes(num_top, length, length if row_stride is None else row_stride)
    grid = Launch((count, 1, 1), (THREADS, 1, 1), overlaps=True) if count else None
    call = None if grid is None else Call(kernel, grid, sizes)
    return PreparedTokenLogprobs(count, num_top, workspace_bytes=0, _call=call)


VARIANTS: Final[tuple[Variant, ...]] = tuple(
    map(variant_for, (np.float32, np.float16, ml_dtypes.bfloat16))
)
"""One per element type."""
